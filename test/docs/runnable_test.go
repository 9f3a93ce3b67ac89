// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestScripts(t *testing.T) {
	for name, test := range map[string]struct {
		page []string
		want []Script
		fail bool
	}{
		"commands stay on their lines": {
			page: []string{"# Title", "", "<!-- runnable -->", "```sh", "one", "two", "```", "more"},
			want: []Script{{Page: "p.md", Line: 5, Text: "\n\n\n\none\ntwo\n\n\n\n"}},
		},
		"blocks without a marker are ignored": {page: []string{"```sh", "rm -rf /", "```"}},
		"a block that is continued is one script": {
			page: []string{
				"<!-- runnable -->", "```sh", "one", "```", "<!-- runnable, continued -->", "```sh", "two", "```",
			},
			want: []Script{{Page: "p.md", Line: 3, Text: "\n\none\n\n\n\ntwo\n\n\n"}},
		},
		"two independent blocks are two scripts": {
			page: []string{"<!-- runnable -->", "```sh", "one", "```", "<!-- runnable -->", "```sh", "two", "```"},
			want: []Script{
				{Page: "p.md", Line: 3, Text: "\n\none\n\n\n\n\n\n\n"},
				{Page: "p.md", Line: 7, Text: "\n\n\n\n\n\ntwo\n\n\n"},
			},
		},
		"the commands of a marker run first": {
			page: []string{"<!-- runnable", "before", "-->", "```sh", "one", "```"},
			want: []Script{{Page: "p.md", Line: 2, Text: "\nbefore\n\n\none\n\n\n"}},
		},
		"a block that runs twice, after other commands": {
			page: []string{"<!-- runnable, twice", "before", "-->", "```sh", "one", "```"},
			want: []Script{{Page: "p.md", Line: 2, Text: "\nbefore\n\n\none\n\n\n", Twice: true}},
		},
		"a marker that is not before a block": {page: []string{"<!-- runnable -->", "", "```sh", "one", "```"}, fail: true},
		"a marker before output":              {page: []string{"<!-- runnable -->", "```", "one", "```"}, fail: true},
		"a marker with an unknown word": {
			page: []string{"<!-- runnable soon -->", "```sh", "one", "```"}, fail: true,
		},
		"a continuation without a previous block": {
			page: []string{"<!-- runnable, continued -->", "```sh", "one", "```"}, fail: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Scripts("p.md", strings.Join(test.page, "\n")+"\n")
			must.True(t, (err != nil) == test.fail, "got error %v, want an error: %t", err, test.fail)
			if diff := cmp.Diff(test.want, got); !test.fail && diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTheWalkKnowsThePage checks that hack/vm/kured.sh, which `make kured` runs, knows all blocks
// of commands in the section "From kured". Their texts are those of the page in any case.
func TestTheWalkKnowsThePage(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "vm", "kured.sh"), "check").CombinedOutput()
	is.True(t, err == nil, "%v: %s", err, out)
}

// TestPagesHaveRunnableBlocks checks which pages have runnable blocks. The tests in
// test/e2e/pages run the blocks.
func TestPagesHaveRunnableBlocks(t *testing.T) {
	found := map[string]int{}
	for name, text := range pages(t) {
		scripts, err := Scripts(name, text)
		if err != nil {
			t.Error(err)
		}
		found[name] = len(scripts)
	}
	for _, page := range []string{
		"docs/quickstart.md", "docs/applications.md", "docs/uninstall.md", "docs/kubectl-plugin.md", "docs/coming-from.md",
		"docs/rollouts.md", "docs/workers.md", "docs/runbook.md", "docs/concepts.md",
	} {
		is.True(t, found[page] != 0, "%s has no runnable block", page)
	}
}
