// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// program writes a file that takes the place of a program.
func program(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestImage packs a program for two platforms, twice.
func TestImage(t *testing.T) {
	amd64, arm64 := program(t, "for amd64"), program(t, "for arm64")
	var digests []string
	for range 2 {
		folder := t.TempDir()
		o := options{
			tag:      "localhost/server:1",
			layout:   filepath.Join(folder, "layout"),
			archives: folder,
			user:     "65532:65532",
			created:  "2026-11-01T12:00:00Z",
			programs: []string{"linux/amd64=" + amd64, "linux/arm64=" + arm64},
			labels:   map[string]string{"version": "1"},
			command:  []string{"--v=2"},
		}
		if err := run(o, nil); err != nil {
			t.Fatal(err)
		}
		index, err := layout.ImageIndexFromPath(o.layout)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var platforms []string
		for _, m := range manifest.Manifests {
			platforms = append(platforms, m.Platform.String())
			digests = append(digests, m.Digest.String())
		}
		if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
			t.Errorf("got platforms %q, want %q", platforms, want)
		}
		image, err := tarball.ImageFromPath(filepath.Join(folder, "server-arm64.tar"), nil)
		if err != nil {
			t.Fatal(err)
		}
		check(t, image)
	}
	if !slices.Equal(digests[:2], digests[2:]) {
		t.Errorf("got digests %q, want the same from the same programs", digests)
	}
}

func check(t *testing.T, image v1.Image) {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	got := file.Config
	if got.User != "65532:65532" || !slices.Equal(got.Entrypoint, []string{"/server", "--v=2"}) ||
		got.Labels["version"] != "1" || file.Architecture != "arm64" {
		t.Errorf("got configuration %+v of %s", got, file.Architecture)
	}
}

func TestInvalidFlags(t *testing.T) {
	some := program(t, "some")
	valid := options{tag: "localhost/server:1", layout: filepath.Join(t.TempDir(), "l"), created: "2026-11-01T12:00:00Z",
		programs: []string{"linux/amd64=" + some}}
	for want, change := range map[string]func(*options){
		"--tag":       func(o *options) { o.tag = "not a tag" },
		"--program=":  func(o *options) { o.programs = []string{"linux/amd64"} },
		"no such":     func(o *options) { o.programs = []string{"linux/amd64=/none"} },
		"--program:":  func(o *options) { o.programs = nil },
		"--layout or": func(o *options) { o.layout = "" },
		"--created":   func(o *options) { o.created = "yesterday" },
	} {
		o := valid
		change(&o)
		if err := run(o, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
	if err := run(valid, []string{"more"}); err == nil || !strings.Contains(err.Error(), `"more"`) {
		t.Errorf("got error %v, want one that names the argument", err)
	}
	if err := run(valid, nil); err != nil {
		t.Errorf("got error %v for valid flags", err)
	}
}
