// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs tests the documentation: its links and commands, and whether it is complete.
package docs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const root = "../.."

// pages returns the text of every page by its path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		files := must.Get(filepath.Glob(filepath.Join(root, pattern)))(t)
		for _, file := range files {
			out[strings.TrimPrefix(file, root+"/")] = read(t, strings.TrimPrefix(file, root+"/"))
		}
	}
	must.True(t, len(out) >= 10, "found only %d pages", len(out))
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(root, path)))(t)
	return string(text)
}

var (
	fence   = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)\n```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors of the headings of a page, as GitHub generates them.
func anchors(page string) []string {
	var out []string
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		title := link.ReplaceAllString(strings.ReplaceAll(match[1], "`", ""), "")
		out = append(out,
			strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-"))
	}
	return out
}

func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	for name, text := range all {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("%s: link to %s: file not found", name, match[1])
				continue
			}
			if page, isPage := all[path]; anchor != "" && isPage && !slices.Contains(anchors(page), anchor) {
				t.Errorf("%s: link to %s: heading not found in %q", name, match[1], anchors(page))
			}
		}
	}
}

// TestNoPageHasAHeadingTwice checks that each link to a heading has one target, and that no merge
// has left a section twice.
func TestNoPageHasAHeadingTwice(t *testing.T) {
	for name, text := range pages(t) {
		seen := sets.New[string]()
		for _, anchor := range anchors(text) {
			is.True(t, !seen.Has(anchor), "%s has the heading #%s twice", name, anchor)
			seen.Insert(anchor)
		}
	}
}

// shellBlocks calls visit with each block of shell commands.
func shellBlocks(t *testing.T, visit func(page, commands string)) {
	t.Helper()
	blocks := 0
	for name, text := range pages(t) {
		for _, match := range fence.FindAllStringSubmatch(text, -1) {
			if match[1] == "sh" {
				blocks++
				visit(name, match[2])
			}
		}
	}
	is.True(t, blocks >= 10, "found only %d blocks of shell commands", blocks)
}

func TestShellBlocksAreShell(t *testing.T) {
	shellBlocks(t, func(page, commands string) {
		command := exec.CommandContext(t.Context(), "bash", "-n")
		command.Stdin = strings.NewReader(commands)
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s in\n%s", page, err, out, commands)
		}
	})
}

func TestCommandsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	made := regexp.MustCompile(`(?m)^ *make ([a-z][a-z0-9-]*)`)
	file := regexp.MustCompile(`\b(?:artifacts|hack|test)/[\w./-]+`)
	shellBlocks(t, func(page, commands string) {
		for _, match := range made.FindAllStringSubmatch(commands, -1) {
			if !regexp.MustCompile(`(?m)^` + match[1] + `:`).MatchString(makefile) {
				t.Errorf("%s: make %s: target not found", page, match[1])
			}
		}
		for _, path := range file.FindAllString(commands, -1) {
			if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(path, "/..."))); err != nil {
				t.Errorf("%s: %s: file not found", page, path)
			}
		}
	})
	used := regexp.MustCompile("kubectl maintenance ([a-z]+)")
	known := pluginCommands(t)
	for name, text := range pages(t) {
		for _, match := range used.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(known, match[1]) {
				t.Errorf("%s: %q: the plugin has only %q", name, match[0], known)
			}
		}
	}
}

// TestCommandsNameTheGroup checks that commands have the full name of NodeMaintenances: other
// projects have a resource of the same name. docs/install.md explains this.
func TestCommandsNameTheGroup(t *testing.T) {
	unqualified := regexp.MustCompile(
		`(?m)kubectl (?:annotate|delete|describe|edit|get|label|patch|wait) (?:[^#|\n]*[^#.|\n])?\bnodemaintenances?(?:[^.\w]|$)`)
	for name, text := range pages(t) {
		if name == "docs/install.md" {
			continue
		}
		for _, command := range unqualified.FindAllString(text, -1) {
			t.Errorf("%s: %q does not name the group", name, command)
		}
	}
	// Without a group, users of a CRD get theirs, whose group has the priority 1000.
	var service struct {
		Spec struct{ GroupPriorityMinimum int }
	}
	must.Do(t, utilyaml.Unmarshal([]byte(read(t, "artifacts/base/apiservice.yaml")), &service))
	priority := service.Spec.GroupPriorityMinimum
	is.True(t, priority > 0 && priority < 1000, "the APIService has the priority %d", priority)
}

// pluginCommands returns the names of the commands of the kubectl plugin.
func pluginCommands(t *testing.T) []string {
	t.Helper()
	declared := regexp.MustCompile(`Use: +"([a-z]+)`)
	// cobra adds these commands and flags.
	known := []string{"help", "completion"}
	files := must.Get(filepath.Glob(filepath.Join(root, "pkg", "cmd", "kubectlmaintenance", "*.go")))(t)
	for _, file := range files {
		for _, match := range declared.FindAllStringSubmatch(read(t, strings.TrimPrefix(file, root+"/")), -1) {
			known = append(known, match[1])
		}
	}
	must.True(t, len(known) >= 10, "found only %d commands of the plugin", len(known))
	return known
}

func TestRunbookHasEveryReason(t *testing.T) {
	reasons := regexp.MustCompile(
		`(?m)^\t// Reason\w+ \(Blocked\).*\n(?:\t//.*\n)*\tReason\w+ += "(\w+)"`,
	).FindAllStringSubmatch(read(t, "pkg/apis/maintenance/v1alpha1/types_evacuation.go"), -1)
	must.True(t, len(reasons) >= 13, "found only %d reasons of the condition Blocked", len(reasons))
	sections := anchors(read(t, "docs/runbook.md"))
	for _, match := range reasons {
		is.True(t, slices.Contains(sections, strings.ToLower(match[1])), "docs/runbook.md has no section about %s", match[1])
		is.True(t, wording.IsBlocked(match[1]), "wording.Blocked does not name who has to act on %s", match[1])
	}
}

// TestRunbookHasEveryReasonOfRollouts checks that the runbook has a section about each reason why a
// rollout does not go on, and why the work on a node has failed.
func TestRunbookHasEveryReasonOfRollouts(t *testing.T) {
	sections := anchors(read(t, "docs/runbook.md"))
	for file, reason := range map[string]string{
		"types_rollout.go": `(?m)^\tReason\w+ += "(\w+)"`, "types_nodetask.go": `(?m)^\tNodeTask\w+ +NodeTaskReason += "(\w+)"`,
	} {
		found := regexp.MustCompile(reason).FindAllStringSubmatch(read(t, "pkg/apis/maintenance/v1alpha1/"+file), -1)
		must.True(t, len(found) >= 4, "found only %d reasons in %s", len(found), file)
		for _, match := range found {
			if match[1] != v1alpha1.ReasonRolling && match[1] != v1alpha1.ReasonRolloutComplete {
				is.True(t, slices.Contains(sections, strings.ToLower(match[1])), "docs/runbook.md has no section about %s", match[1])
			}
		}
	}
	// Drains have these reasons, too.
	for _, reason := range []string{v1alpha1.ReasonNotAuthorized, v1alpha1.ReasonProgressSyncFailed} {
		is.True(t, slices.Contains(sections, strings.ToLower(reason)+"-of-a-rollout"), "docs/runbook.md has no section about %s of a rollout", reason)
	}
}

func TestSecurityPageHasEveryRightOfTheServer(t *testing.T) {
	page := read(t, "docs/security.md")
	decoder := utilyaml.NewYAMLToJSONDecoder(bytes.NewReader([]byte(read(t, "artifacts/base/rbac-server.yaml"))))
	rules := 0
	for {
		var role rbacv1.ClusterRole
		if err := decoder.Decode(&role); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			rules++
			for _, resource := range rule.Resources {
				// The page explains the status of an object together with the object.
				if name, _ := strings.CutSuffix(resource, "/status"); !strings.Contains(page, "`"+resource+"`") &&
					!strings.Contains(page, "`"+name+"`") {
					t.Errorf("docs/security.md does not explain why the server needs %v of %s", rule.Verbs, resource)
				}
			}
		}
	}
	is.True(t, rules >= 10, "found only %d rules", rules)
}

// readmeLines is the maximum length of README.md, columns the maximum length of a line of text.
const readmeLines, columns = 150, 100

func TestPagesAreNarrow(t *testing.T) {
	for name, text := range pages(t) {
		inFence := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				inFence = !inFence
			}
			if !inFence && utf8.RuneCountInString(line) > columns && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d: the line is too long", name, i+1)
			}
		}
	}
	if lines := strings.Count(read(t, "README.md"), "\n"); lines > readmeLines {
		t.Errorf("README.md has %d lines, more than %d", lines, readmeLines)
	}
}

// TestSamplesAreWhatThePluginPrints checks that each line of a sample is in the golden files of the
// plugin's tests.
func TestSamplesAreWhatThePluginPrints(t *testing.T) {
	files := must.Get(filepath.Glob(filepath.Join(root, "pkg", "cmd", "kubectlmaintenance", "testdata", "*.txt")))(t)
	printed := sets.New("...")
	for _, file := range files {
		for line := range strings.Lines(read(t, strings.TrimPrefix(file, root+"/"))) {
			printed.Insert(strings.TrimSpace(line))
		}
	}
	samples := 0
	for _, match := range fence.FindAllStringSubmatch(read(t, "docs/kubectl-plugin.md"), -1) {
		if !strings.HasPrefix(match[2], "$ kubectl maintenance") {
			continue
		}
		samples++
		for line := range strings.Lines(match[2]) {
			if line = strings.TrimSpace(line); line != "" && !printed.Has(line) {
				t.Errorf("the plugin does not print %q", line)
			}
		}
	}
	is.True(t, samples >= 5, "found only %d samples", samples)
}

// TestSentencesToTriageAreInTheTests checks that the failure messages that docs/triage.md explains
// are in the code of the tests. "…" in the page matches a verb such as %s in the code.
func TestSentencesToTriageAreInTheTests(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"test/oracle/*.go", "test/faults/*.go", "test/e2e/*/*.go"} {
		files := must.Get(filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern))))(t)
		for _, file := range files {
			code.WriteString(read(t, strings.TrimPrefix(file, root+"/")))
		}
	}
	sentences := 0
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllStringSubmatch(read(t, "docs/triage.md"), -1) {
		for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			sentences++
			if !regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(match[1]), "…", "%[a-z]")).MatchString(code.String()) {
				t.Errorf("docs/triage.md: no test has the message %q", match[1])
			}
		}
	}
	is.True(t, sentences >= 10, "found only %d sentences", sentences)
}

// TestDecisionsAreInTheirIndex compares docs/decisions/README.md with the titles of the decisions
// and with the decisions that supersede them.
func TestDecisionsAreInTheirIndex(t *testing.T) {
	index := read(t, "docs/decisions/README.md")
	number := regexp.MustCompile(`\[decision\s+(\d+)\]`)
	for name, text := range pages(t) {
		file, isDecision := strings.CutPrefix(name, "docs/decisions/")
		if !isDecision || file == "README.md" {
			continue
		}
		parts := strings.SplitN(text, "\n\n", 3)
		id, title, _ := strings.Cut(strings.TrimPrefix(parts[0], "# "), ". ")
		var by []string
		if strings.HasPrefix(parts[1], "Superseded by ") {
			for _, match := range number.FindAllStringSubmatch(parts[1], -1) {
				if !slices.Contains(by, match[1]) {
					by = append(by, match[1])
				}
			}
		} else if strings.Contains(text, "\nSuperseded by ") {
			t.Errorf("%s: the line \"Superseded by\" is not below the title", name)
		}
		entry := strings.Join([]string{"|", "[" + id + "](" + file + ")", "|", title, "|", strings.Join(by, ", "), "|"}, " ")
		entry = strings.ReplaceAll(entry, "|  |", "| |")
		is.True(t, strings.Contains(index, entry+"\n"), "docs/decisions/README.md does not have the line %q", entry)
	}
}
