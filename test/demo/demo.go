/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/cmd/screen"
	"haulout.dev/haulout/test/internal/audit"
)

const (
	workloadsFile   = "test/demo/workloads.yaml"
	maintenanceFile = "test/demo/maintenance.yaml"
	maintenanceName = "kernel-update"
	nodeLabel       = "pool=blue"
)

// demo is one run.
type demo struct {
	settings settings
	screen   *screen.Screen
	programs *programs

	begun     time.Time
	started   bool // there is a cluster to be stopped
	observer  *observer
	workloads []workload
	nodes     []string // the nodes that are drained
	ledger    *audit.Ledger
	checks    []audit.Check
}

// step is one part of the story.
type step struct {
	title string
	limit time.Duration
	run   func(context.Context) error
}

// steps returns the parts of the story; watching is the context of what outlives them.
func (d *demo) steps(watching context.Context) []step {
	return []step{
		{
			title: fmt.Sprintf("Start a cluster with %d nodes", d.settings.nodes),
			limit: 3 * time.Minute,
			run: func(ctx context.Context) error {
				return d.startCluster(ctx, watching)
			},
		},
		{"Put work on it", 2 * time.Minute, d.startWork},
		{fmt.Sprintf("Take %d nodes out of service", drainedNodes), 3 * time.Minute, d.drain},
		{"Look at what has happened", time.Minute, d.look},
		{"Put the nodes back", time.Minute, d.putBack},
	}
}

// run tells the story up to where the cluster is stopped. The error names the step that failed.
func (d *demo) run(ctx context.Context) error {
	d.begun = time.Now()
	d.announce()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	for i, s := range d.steps(watching) {
		d.screen.Println(screen.Line{}, screen.Line{Text: fmt.Sprintf("%d. %s", i+1, s.title), Style: screen.Heading})
		limited, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("not done within %s", s.limit))
		err := s.run(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, strings.ToLower(s.title), err)
		}
	}
	return d.judge()
}

func (d *demo) announce() {
	d.screen.Println(screen.Line{Text: "Haulout: nodes out of service and back", Style: screen.Heading})
	d.screen.Printf(`
This starts a Kubernetes cluster on this machine: a real control plane, %d
simulated nodes, and Haulout. It puts about 300 pods on it, takes %d nodes out
of service through the API, puts them back, and stops everything. That takes
less than a minute. Its files are in %s. Ctrl-C stops all of it, too.`, d.settings.nodes, drainedNodes, d.settings.dir)
}

// judge says which promises were kept.
func (d *demo) judge() error {
	d.screen.Println(
		screen.Line{},
		screen.Line{Text: "What was checked, by watching every change of every pod and node", Style: screen.Heading},
	)
	broken := 0
	for _, check := range d.checks {
		line := screen.Line{Text: "  ok      " + check.Text, Style: screen.Good}
		if !check.Kept {
			line = screen.Line{Text: "  FAILED  " + check.Text, Style: screen.Bad}
			broken++
		}
		d.screen.Println(line)
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d checks failed", broken, len(d.checks))
	}
	return nil
}

// finish stops the cluster, unless it is to be kept, and says how it went.
func (d *demo) finish(runErr error, interrupted bool) error {
	if interrupted {
		d.screen.Println(screen.Line{}, screen.Line{Text: "Interrupted", Style: screen.Bad})
	} else if runErr != nil {
		d.explain(runErr)
	}
	if d.started && d.settings.keep && !interrupted {
		d.explainKeep()
		return nil
	}
	var stopErr error
	if d.started {
		stopErr = d.stopCluster()
	}
	if runErr == nil && stopErr == nil {
		d.screen.Printf("\nDone after %d s.", int(time.Since(d.begun).Seconds()))
	}
	return stopErr
}

// explain says what failed and shows the log that may tell why.
func (d *demo) explain(err error) {
	d.screen.Println(screen.Line{}, screen.Line{Text: "FAILED: " + err.Error(), Style: screen.Bad})
	if d.observer == nil {
		return
	}
	if complaints := complaints(d.programs.log(), 10); len(complaints) > 0 {
		d.screen.Printf("\nThe last warnings and errors in the log of haulout-apiserver:")
		for _, line := range complaints {
			d.screen.Printf("  | %s", screen.Fit(line, 240))
		}
	}
	if !d.settings.keep {
		d.screen.Printf("\nKEEP=1 make demo leaves the cluster up, to be looked at.")
	}
}

func (d *demo) explainKeep() {
	d.screen.Printf(`
The cluster is left up (KEEP=1). Use it:
  export KUBECONFIG=%s
  bin/kubectl get nodes
Stop it:
  make cluster-down %s`, quote(d.settings.path(d.settings.kubeconfig())), d.settings.makeArguments())
}

// stopCluster stops the cluster whatever has happened before.
func (d *demo) stopCluster() error {
	d.screen.Println(screen.Line{}, screen.Line{Text: "Stop everything", Style: screen.Heading})
	d.command("bin/cluster down --cluster-dir=" + quote(d.settings.dir))
	ctx, cancel := context.WithTimeoutCause(context.Background(), 2*time.Minute, errors.New("not done within 2m0s"))
	defer cancel()
	out, err := d.programs.stopCluster(ctx)
	if err != nil {
		err = fmt.Errorf("stop the cluster: %w", err)
		d.screen.Println(screen.Line{Text: "FAILED: " + err.Error(), Style: screen.Bad},
			screen.Line{Text: "Try again: make cluster-down " + d.settings.makeArguments()})
		return err
	}
	d.output(out, 3)
	return nil
}

// command shows a command as a user would type it.
func (d *demo) command(line string) {
	d.screen.Println(screen.Line{Text: "$ " + line, Style: screen.Heading})
}

// output shows what a command has printed, as far as it fits.
func (d *demo) output(text string, limit int) {
	if strings.TrimSpace(text) == "" {
		return
	}
	for _, line := range screen.Shorten(text, limit) {
		d.screen.Printf("  %s", line)
	}
}

// kubectl runs kubectl, shows the command and the first lines of what it prints.
func (d *demo) kubectl(ctx context.Context, limit int, args ...string) error {
	words := make([]string, 0, len(args))
	for _, arg := range args {
		words = append(words, quote(arg))
	}
	d.command("kubectl " + strings.Join(words, " "))
	out, err := d.programs.kubectl(ctx, args...)
	if err != nil {
		return err
	}
	d.output(out, limit)
	return nil
}
