// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/must"
)

func shell(environment ...string) Program { return Program{Path: "/bin/sh", Environment: environment} }

func TestRunReturnsBothOutputs(t *testing.T) {
	t.Setenv("GIVEN", "overridden")
	p := shell("GIVEN=here")
	p.Dir = t.TempDir()
	got := must.Get(p.Run(t.Context(), "-c", `echo "$GIVEN"; echo there >&2; pwd -P`))(t)
	dir := must.Get(filepath.EvalSymlinks(p.Dir))(t)
	if want := "here\nthere\n" + dir + "\n"; got.Output != want {
		t.Errorf("printed %q, want %q", got.Output, want)
	}
}

func TestRunCountsTheTimeOnTheProcessors(t *testing.T) {
	got, err := shell().Run(t.Context(), "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	if err != nil || got.CPU <= 0 {
		t.Errorf("got processor time %v, error %v", got.CPU, err)
	}
}

func TestTheErrorOfAProgramThatFailsSaysWhatItPrinted(t *testing.T) {
	got, err := shell().Run(t.Context(), "-c", "echo no room left >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "sh -c: exit status 3\nno room left") ||
		got.Output != "no room left\n" {
		t.Errorf("error %v, output %q", err, got.Output)
	}
}

func TestAProgramThatIsNotThereIsAnError(t *testing.T) {
	if _, err := (Program{Path: filepath.Join(t.TempDir(), "none")}).Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got error %v, want that the file does not exist", err)
	}
}

func TestAProgramMayCleanUpWhenTheContextEnds(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	ready := filepath.Join(t.TempDir(), "ready")
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(ready); err == nil {
				cancel(why)
				return
			}
			<-time.After(time.Millisecond)
		}
	}()
	got, err := shell("READY="+ready).Run(ctx, "-c",
		`trap 'echo cleaned up; exit 0' TERM; : >"$READY"; while :; do sleep 0.01; done`)
	if !errors.Is(err, why) || got.Output != "cleaned up\n" {
		t.Errorf("error %v, output %q", err, got.Output)
	}
}
