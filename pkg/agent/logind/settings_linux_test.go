// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"os"
	"path/filepath"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestEffectiveSetting(t *testing.T) {
	const (
		main = "etc/systemd/logind.conf"
		etc  = "etc/systemd/logind.conf.d/"
		run  = "run/systemd/logind.conf.d/"
		usr  = "usr/lib/systemd/logind.conf.d/"
	)
	for name, test := range map[string]struct {
		files map[string]string
		want  setting
	}{
		"no file": {},
		"the main file": {
			files: map[string]string{main: "[Login]\nInhibitDelayMaxSec = 10min\n"},
			want:  setting{path: "/" + main, value: "10min"},
		},
		"comments, empty values, other sections and other keys do not count": {
			files: map[string]string{main: "#InhibitDelayMaxSec=1\nInhibitDelayMaxSec=2\n[Other]\nInhibitDelayMaxSec=3\n[Login]\n" +
				"InhibitDelayMaxSec=\nHoldoffTimeoutSec=4\n;InhibitDelayMaxSec=5"},
		},
		"the last line of a file": {
			files: map[string]string{main: "[Login]\nInhibitDelayMaxSec=1\nInhibitDelayMaxSec=2"},
			want:  setting{path: "/" + main, value: "2"},
		},
		"a drop-in has precedence over the main file": {
			files: map[string]string{main: "[Login]\nInhibitDelayMaxSec=1", usr + "10.conf": "[Login]\nInhibitDelayMaxSec=2"},
			want:  setting{path: "/" + usr + "10.conf", value: "2"},
		},
		"the order is that of the names, not of the directories": {
			files: map[string]string{etc + "a.conf": "[Login]\nInhibitDelayMaxSec=1", usr + "b.conf": "[Login]\nInhibitDelayMaxSec=2"},
			want:  setting{path: "/" + usr + "b.conf", value: "2"},
		},
		"etc hides a file of the same name": {
			files: map[string]string{etc + "a.conf": "[Login]\nInhibitDelayMaxSec=1", run + "a.conf": "[Login]\nInhibitDelayMaxSec=2"},
			want:  setting{path: "/" + etc + "a.conf", value: "1"},
		},
		"a hidden file does not count": {
			files: map[string]string{etc + "z.conf": "", run + "z.conf": "[Login]\nInhibitDelayMaxSec=2", run + "a.conf": "[Login]\nInhibitDelayMaxSec=3"},
			want:  setting{path: "/" + run + "a.conf", value: "3"},
		},
		"a file without .conf is not read": {
			files: map[string]string{etc + "a.conf.bak": "[Login]\nInhibitDelayMaxSec=1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range test.files {
				must.Do(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
				must.Do(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o644))
			}
			got, err := effectiveSetting(root)
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}
