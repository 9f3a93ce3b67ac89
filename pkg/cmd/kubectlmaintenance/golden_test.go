// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const manifest = `apiVersion: maintenance.haulout.dev/v1alpha1
kind: NodeMaintenance
metadata:
  name: planned
spec:
  stage: Drain
  nodeSelector:
    nodeSelectorTerms:
    - matchExpressions:
      - {key: pool, operator: In, values: [blue]}
`

// golden is a command line with its expected output.
type golden struct {
	line string
	// stdin is the standard input.
	stdin string
	// objects are the objects in the cluster; everything() if nil.
	objects []runtime.Object
	// arrange modifies the world before the command runs.
	arrange func(*world)
}

var goldens = map[string]golden{
	"help":        {line: "--help"},
	"help-drain":  {line: "drain --help"},
	"start-node":  {line: "start node-003"},
	"start-names": {line: "start node/node-003 node-004 node-003 -o yaml --dry-run=client"},
	"start-selector": {
		line: "start -l pool=blue,zone!=a,!gpu --stage=cordon --reason=network -o yaml --dry-run=client",
	},
	"start-plan": {
		line:  "start node-003 --plan=- -o yaml --dry-run=client",
		stdin: "- {podPriority: 0, podSelector: {matchLabels: {tier: batch}}}\n",
	},
	"start-plan-of-manifest": {
		line: "start node-003 --plan=- -o name --dry-run=client", stdin: manifest + "  drainPlan: [{podPriority: 5}]\n",
	},
	"start-plan-misspelled":  {line: "start node-003 --plan=-", stdin: "- {podPriority: 0, podSelektor: {}}\n"},
	"start-plan-empty":       {line: "start node-003 --plan=-", stdin: "drainPlan: []\n"},
	"start-server-dry-run":   {line: "start node-003 --dry-run=server"},
	"start-wait":             {line: "start node-005 --wait --timeout=1m"},
	"start-wait-cordon":      {line: "start node-003 --stage=Cordon --wait", arrange: cordonsWhatIsMade},
	"start-nothing":          {line: "start"},
	"start-both":             {line: "start node-003 -l pool=blue"},
	"start-empty-selector":   {line: "start -l ,"},
	"start-bad-stage":        {line: "start node-003 --stage=Complete"},
	"start-bad-dry-run":      {line: "start node-003 --dry-run=maybe"},
	"start-bad-output":       {line: "start node-003 -o table"},
	"start-timeout-alone":    {line: "start node-003 --timeout=1m"},
	"start-negative-timeout": {line: "start node-003 --wait --timeout=-1m"},
	"start-unknown-node":     {line: "start node-099"},
	"start-unknown-flag":     {line: "start node-003 --when=now"},
	"start-all-refused":      {line: "start -l kubernetes.io/os=linux"},
	"start-all-yes":          {line: "start -l kubernetes.io/os=linux --yes"},
	"start-control-plane":    {line: "start node-001"},
	"start-asked-no":         {line: "start node-001", stdin: "n\n", arrange: interactive},
	"start-asked-yes":        {line: "start node-001", stdin: "Y\n", arrange: interactive},
	"start-may-not-list":     {line: "start node-003", arrange: forbid("list", "nodes")},
	"start-not-installed":    {line: "start node-003", arrange: notInstalled},
	"drain":                  {line: "drain node-005"},
	"drain-habits": {
		line: "drain node-005 --ignore-daemonsets --delete-emptydir-data --force --chunk-size=100 " +
			"--skip-wait-for-delete-timeout=5",
	},
	"drain-refused":        {line: "drain node-005 --disable-eviction --grace-period=0 --pod-selector=app=web"},
	"drain-negative-grace": {line: "drain node-005 --grace-period=-1 -o name"},
	"drain-dry-run":        {line: "drain node-005 --dry-run=server --timeout=5m"},
	"start-new-nodes":      {line: "start -l pool=blue --new-nodes=join -o yaml --dry-run=client"},
	"start-bad-new-nodes":  {line: "start -l pool=blue --new-nodes=Adopt"},
	"drain-bad-new-nodes":  {line: "drain node-005 --new-nodes="},
	"drain-no-preview":     {line: "drain node-005", arrange: forbid("get", "nodemaintenances/preview")},
	"drain-clear":          {line: "drain node-005", arrange: clearPreview},
	"drain-many-warnings":  {line: "drain node-005 -o name", arrange: manyWarnings},
	"start-refused":        {line: "start node-003", arrange: forbid("create", "nodemaintenances")},
	"stage-no-preview":     {line: "stage zone-a Drain", arrange: forbid("get", "nodemaintenances/preview")},
	"status-new-nodes": {
		line: "status kernel-update", objects: ignoring(v1alpha1.NewNodesPolicyIgnore),
	},
	"status-new-nodes-join": {
		line: "status kernel-update", objects: ignoring(v1alpha1.NewNodesPolicyJoin),
	},
	"preview":            {line: "preview kernel-update"},
	"preview-wide":       {line: "preview nm/kernel-update -o wide"},
	"preview-omitted":    {line: "preview kernel-update -o wide", arrange: omittingPreview},
	"preview-nodes":      {line: "preview node-003 node-004"},
	"preview-node":       {line: "preview node-003 -o name"},
	"preview-responders": {line: "preview kernel-update -o wide", arrange: respondersPreview},
	"preview-static":     {line: "preview kernel-update", arrange: staticPreview},
	"preview-file":       {line: "preview -f -", stdin: manifest},
	"preview-behaviors": {line: "preview -f -", stdin: manifest + `  drainPlan:
  - {podType: Default, podPriority: 1000000000, podSelector: {matchLabels: {app: web}}, behavior: WaitCompleted, waitSeconds: 3600}
  - {podType: Default, podPriority: 1000000000, podSelector: {matchLabels: {app: checkout}}, behavior: WaitCompleted}
  - {podType: Default, podPriority: 1000000000}
  - {podType: Default, podPriority: 2147483647, podSelector: {matchLabels: {app: dns}}, behavior: Skip}
  - {podType: Default, podPriority: 2147483647}
`},
	"preview-file-misspelled": {line: "preview -f -", stdin: manifest + "  drainPlann: []\n"},
	"preview-file-other":      {line: "preview -f -", stdin: "apiVersion: v1\nkind: Node\nmetadata: {name: x}\n"},
	"preview-file-and-nodes":  {line: "preview -f x.yaml node-003"},
	"preview-unknown":         {line: "preview nm/none"},
	"preview-forbidden":       {line: "preview node-003", arrange: forbid("get", "nodemaintenances/preview")},
	"status":                  {line: "status kernel-update"},
	"status-table":            {line: "status"},
	"status-only-one":         {line: "status", objects: []runtime.Object{cordon(), complete()}},
	"status-none":             {line: "status", objects: []runtime.Object{}},
	"status-name":             {line: "status -o name"},
	"status-one-name":         {line: "status kernel-update -o name"},
	"status-jsonpath":         {line: "status kernel-update -o jsonpath={.spec.stage}"},
	"status-complete":         {line: "status memory"},
	"status-unknown":          {line: "status none"},
	"status-two-names":        {line: "status a b"},
	"status-watch-json":       {line: "status -w -o json"},
	"status-watch-complete":   {line: "status memory --watch"},
	"status-without-rights":   {line: "status kernel-update", arrange: forbid("list", "evacuations")},
	"status-no-waves":         {line: "status kernel-update", objects: append([]runtime.Object{withoutWaves()}, evacuations()...)},
	"status-blocked":          {line: "status kernel-update", objects: stuck()},
	"status-long":             {line: "status kernel-update", objects: append([]runtime.Object{long()}, evacuations()...)},
	"status-long-table":       {line: "status", objects: append([]runtime.Object{long(), cordon()}, evacuations()...)},
	"blockers":                {line: "blockers"},
	"blockers-of-one":         {line: "blockers kernel-update"},
	"blockers-wide":           {line: "blockers kernel-update -o wide"},
	"blockers-name":           {line: "blockers kernel-update -o name"},
	"blockers-none":           {line: "blockers memory"},
	"blockers-refused": {
		line: "blockers kernel-update", objects: notAuthorized(),
	},
	"blockers-refused-wide": {
		line: "blockers kernel-update -o wide", objects: notAuthorized(),
	},
	"blockers-sync-failed": {
		line: "blockers kernel-update", objects: syncFailed(),
	},
	"blockers-uncordoned":  {line: "blockers", objects: []runtime.Object{cordonMessage()}},
	"blockers-stalled":     {line: "blockers", objects: append([]runtime.Object{stalled()}, stalledEvacuations()...)},
	"blockers-pods-only":   {line: "blockers", arrange: forbid("list", "nodemaintenances")},
	"blockers-stuck":       {line: "blockers", objects: stuck()},
	"blockers-new-reasons": {line: "blockers", objects: newReasons()},
	"status-stalled":       {line: "status kernel-update", objects: append([]runtime.Object{stalled()}, stalledEvacuations()...)},
	"status-sync-failed": {
		line: "status kernel-update", objects: syncFailed(),
	},
	"status-no-messages":   {line: "status kernel-update", objects: notAuthorized(), arrange: withoutNodeMessages},
	"status-stalled-table": {line: "status", objects: append([]runtime.Object{stalled(), cordon(), releasing()}, stalledEvacuations()...)},
	"status-too-many":      {line: "status kernel-update", objects: tooMany()},
	"status-waits":         {line: "status kernel-update", objects: []runtime.Object{waitingForOthers()}},
	"status-completing":    {line: "status kernel-update", objects: []runtime.Object{completing()}},
	"status-no-nodes":      {line: "status kernel-update", objects: []runtime.Object{withoutNodes()}},
	"status-drained":       {line: "status kernel-update", objects: []runtime.Object{drained()}},
	"blockers-drained":     {line: "blockers kernel-update", objects: []runtime.Object{drained()}},
	"blockers-paused-wide": {line: "blockers kernel-update -o wide", objects: paused()},
	"status-cordon":        {line: "status zone-a", objects: []runtime.Object{cordonMessage()}},
	"wait-stalled":         {line: "stage kernel-update Drain --wait --timeout=1m", objects: append([]runtime.Object{stalled()}, stalledEvacuations()...)},
	"wait-sync-failed": {
		line: "stage kernel-update Drain --wait --timeout=1m", objects: syncFailed(),
	},
	"complete-stuck":        {line: "complete memory --timeout=1m", objects: []runtime.Object{releasing()}},
	"history-stalled":       {line: "history kernel-update", objects: append(append([]runtime.Object{stalled()}, stalledEvacuations()...), events()...)},
	"blockers-namespace":    {line: "blockers --namespace=db"},
	"blockers-waiting":      {line: "blockers kernel-update", objects: everything(waiting()...)},
	"blockers-waiting-wide": {line: "blockers kernel-update -o wide", objects: everything(waiting()...)},
	"blockers-waiting-name": {line: "blockers kernel-update -o name", objects: everything(waiting()...)},
	"blockers-waiting-json": {
		line:    "blockers kernel-update -o jsonpath={.items[*].spec.podRef.name}",
		objects: everything(waiting()...),
	},
	"blockers-stopping":      {line: "blockers kernel-update", objects: drainOf(stopping()...)},
	"blockers-stopping-wide": {line: "blockers kernel-update -o wide", objects: drainOf(stopping()...)},
	"blockers-app-down":      {line: "blockers kernel-update", objects: appDown()},
	"blockers-turns":         {line: "blockers kernel-update", objects: drainOf(turns()...)},
	"status-stopping": {
		line: "status kernel-update", objects: drainOf(append(turns(), stopping()...)...),
	},
	"status-again": {line: "status kernel-update", objects: again()},
	"blockers-only-waiting": {
		line: "blockers kernel-update", objects: drainOf(waiting()...),
	},
	"status-waiting": {
		line:    "status kernel-update",
		objects: drainOf(append(evacuations(), waiting()...)...),
	},
	"blockers-forbidden":     {line: "blockers", arrange: forbid("list", "evacuations")},
	"stage":                  {line: "stage zone-a Drain"},
	"stage-wait":             {line: "stage zone-a cordon --wait"},
	"stage-complete":         {line: "stage nm/memory complete --wait"},
	"stage-bad":              {line: "stage zone-a Idle"},
	"stage-no-stage":         {line: "stage zone-a"},
	"stage-client-dry-run":   {line: "stage zone-a Drain --dry-run=client"},
	"complete":               {line: "complete memory"},
	"complete-no-wait":       {line: "complete kernel-update --wait=false"},
	"complete-timeout":       {line: "complete kernel-update --timeout=1m"},
	"complete-nothing":       {line: "complete"},
	"cancel":                 {line: "cancel kernel-update"},
	"cancel-server-dry-run":  {line: "cancel kernel-update --dry-run=server", arrange: dryRunsDelete},
	"cancel-unknown":         {line: "cancel none"},
	"history":                {line: "history kernel-update"},
	"history-json":           {line: "history kernel-update -o json"},
	"history-yaml":           {line: "history kernel-update -o yaml"},
	"history-bad-output":     {line: "history kernel-update -o table"},
	"history-without-events": {line: "history kernel-update", arrange: forbid("list", "events")},
	"wait-timeout":           {line: "stage kernel-update Drain --wait --timeout=1m"},
	"wait-blocked": {
		line:    "stage kernel-update Drain --wait --timeout=1m",
		objects: stuck(),
	},
	"completion-names":   {line: "__complete status "},
	"completion-active":  {line: "__complete complete "},
	"completion-nodes":   {line: "__complete drain node-003 node-00"},
	"completion-preview": {line: "__complete preview "},
	"completion-stages":  {line: "__complete stage zone-a "},
	"completion-output":  {line: "__complete status -o "},
}

// allGoldens are the cases of all files.
func allGoldens() map[string]golden {
	all := maps.Clone(goldens)
	maps.Copy(all, verbGoldens)
	maps.Copy(all, waitGoldens)
	maps.Copy(all, rolloutGoldens)
	return all
}

// runGolden runs a command and returns a transcript of its output.
func runGolden(t *testing.T, g golden) (*world, string) {
	t.Helper()
	objects := g.objects
	if objects == nil {
		objects = everything()
	}
	w := newWorld(t, g.stdin, objects...)
	if g.arrange != nil {
		g.arrange(w)
	}
	// The clock moves while a command waits.
	start := time.Now()
	w.environment.now = func() time.Time { return now.Add(time.Since(start)) }
	args := strings.Fields(g.line)
	if strings.HasSuffix(g.line, " ") {
		args = append(args, "")
	}
	code := w.run(t.Context(), args)
	text := "$ kubectl maintenance " + strings.TrimRight(g.line, " ") + "\n" + w.out.String()
	if w.err.String() != "" {
		text += "--- stderr\n" + w.err.String()
	}
	return w, text + fmt.Sprintf("--- exit %d\n", code)
}

// TestGolden compares the output of every command with the files in testdata. Time advances only
// while a command waits, so that the state at the end of its --timeout does not depend on the
// machine.
func TestGolden(t *testing.T) {
	for name, g := range allGoldens() {
		bubble.Run(t, name, func(t *testing.T) { compare(t, name, g) })
	}
}

// compare runs a command and compares its output with its file in testdata.
func compare(t *testing.T, name string, g golden) {
	t.Helper()
	w, got := runGolden(t, g)
	path := filepath.Join("testdata", name+".txt")
	if *update {
		must.Do(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("not as in %s; -update rewrites it (-want +got):\n%s", path, diff)
	}
	leavesNothing(t, w)
}

// leavesNothing checks that no temporary object is left.
func leavesNothing(t *testing.T, w *world) {
	t.Helper()
	for _, action := range w.haulout.Actions() {
		create, ok := action.(clienttesting.CreateActionImpl)
		if !ok || len(create.CreateOptions.DryRun) > 0 {
			continue
		}
		nm, ok := create.Object.(*v1alpha1.NodeMaintenance)
		if !ok || nm.Spec.Reason != previewReason {
			continue
		}
		if nm.Spec.Stage != v1alpha1.NodeMaintenanceStageIdle {
			t.Errorf("a temporary maintenance was made in stage %s", nm.Spec.Stage)
		}
		if _, err := w.haulout.Tracker().Get(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), "",
			nm.Name); !apierrors.IsNotFound(err) {
			t.Errorf("%s is left (%v)", nm.Name, err)
		}
	}
}

// TestNoFileIsLeftOver fails if a golden file belongs to no test case.
func TestNoFileIsLeftOver(t *testing.T) {
	files := must.Get(filepath.Glob("testdata/*.txt"))(t)
	for _, file := range files {
		if _, known := allGoldens()[strings.TrimSuffix(filepath.Base(file), ".txt")]; !known {
			t.Errorf("%s belongs to no case", file)
		}
	}
}

// shellFields splits a command line as a shell does, for the syntax that the examples use.
func shellFields(line string) []string {
	var out []string
	for _, word := range regexp.MustCompile(`(?:[^\s"']|"[^"]*"|'[^']*')+`).FindAllString(line, -1) {
		out = append(out, strings.NewReplacer(`"`, "", `'`, "").Replace(word))
	}
	return out
}

// tryLine runs a command line of an example or a page, in a cluster with the objects that the
// examples and pages mention.
func tryLine(t *testing.T, line string) {
	t.Helper()
	w := newWorld(t, "", append(append(withPods(), rolling()...), offered()...)...)
	if strings.Contains(line, "maintenance take ") {
		grants(w)
	}
	// Simulate a server that completes each drain, each maintenance and each evacuation.
	settle := func(line string) *v1alpha1.NodeMaintenance {
		nm := draining()
		nm.Finalizers = nil
		nm.Status.Conditions[0].Status = metav1.ConditionTrue
		if strings.Contains(strings.ToLower(line), "complete") {
			nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
		}
		must.Do(t, w.haulout.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), nm, ""))
		return nm
	}
	w.haulout.PrependReactor(
		"patch", "nodemaintenances",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			return true, settle(string(action.(clienttesting.PatchAction).GetPatch())), nil
		},
	)
	w.haulout.PrependReactor(
		"create", "evacuations",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			gone(0)(action.(clienttesting.CreateAction).GetObject().(*v1alpha1.Evacuation))
			return false, nil, nil
		},
	)
	if strings.HasPrefix(line, "kubectl maintenance wait") {
		settle(line)
	}
	ctx := t.Context()
	args := shellFields(strings.TrimPrefix(line, "kubectl maintenance"))
	if slices.Contains(args, "--watch") {
		args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--watch" })
	}
	if code := w.run(ctx, args); code != exitDone && code != exitBlocked && code != exitPodsKept {
		t.Errorf("%s ends with %d: %s", line, code, w.err.String())
	}
}

// TestExamples runs the examples of every help text.
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	must.Do(t, os.WriteFile("maintenance.yaml", []byte(manifest), 0o600))
	var visit func(cmd *cobra.Command)
	tried := 0
	visit = func(cmd *cobra.Command) {
		for _, child := range cmd.Commands() {
			visit(child)
		}
		if cmd.Runnable() && cmd.GroupID != "" && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			switch {
			case line == "" || strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line+" ", cmd.CommandPath()+" "):
				tryLine(t, line)
				tried++
			default:
				t.Errorf("an example of %s is %q", cmd.CommandPath(), line)
			}
		}
	}
	visit(newWorld(t, "").newCommand())
	is.True(t, tried >= 15, "only %d examples were found", tried)
}

// TestThePageOfThePlugin runs the commands of docs/kubectl-plugin.md, and checks that the page has
// every command and exit code.
func TestThePageOfThePlugin(t *testing.T) {
	content := must.Get(os.ReadFile("../../../docs/kubectl-plugin.md"))(t)
	t.Chdir(t.TempDir())
	must.Do(t, os.WriteFile("maintenance.yaml", []byte(manifest), 0o600))
	scanner := bufio.NewScanner(bytes.NewReader(content))
	for scanner.Scan() {
		line, _, _ := strings.Cut(strings.TrimPrefix(scanner.Text(), "$ "), "  #")
		line, _, _ = strings.Cut(line, " || ")
		if strings.HasPrefix(line, "kubectl maintenance ") {
			tryLine(t, strings.TrimSpace(line))
		}
	}
	for _, cmd := range newWorld(t, "").newCommand().Commands() {
		if cmd.GroupID != "" && !bytes.Contains(content, []byte("## `"+cmd.Name())) {
			t.Errorf("%s has no section", cmd.Name())
		}
	}
	for _, code := range []int{exitDone, exitFailed, exitTimeout, exitBlocked, exitEnded, exitPaused, exitPodsKept, exitInterrupted} {
		is.True(t, bytes.Contains(content, []byte(fmt.Sprintf("| %d |", code))), "the exit code %d is not explained", code)
	}
}

// hostile is a text that a user with few rights could write into the API: it clears the screen,
// rings the bell, sets colors, starts a line that looks like one of the plugin's, and reverses the
// direction.
const hostile = "ś\x1b[2J\a\x9b31m\u009b2J\nevil: all drained\r\u202etxet"

// hostileCluster has the hostile text in every text that the plugin shows.
func hostileCluster() []runtime.Object {
	nm := draining()
	nm.Spec.Reason = hostile
	nm.Spec.RequestedBy.Username = "alice" + hostile
	nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: "alice" + hostile, Since: before(time.Minute)}
	nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonProgressSyncFailed,
		Message: hostile,
	})
	nm.Status.Conditions[0].Message = hostile
	for i := range nm.Status.NodeStatuses {
		nm.Status.NodeStatuses[i].DrainMessage = hostile
	}
	blocker := evacuation("shop", "web"+hostile, "node-004", blocked("Unknown"+hostile, hostile, time.Minute))
	waits := evacuation("shop", "cart", "node-003", active("flush.example.com"+hostile, hostile, time.Minute))
	happened := event("a", "Cordoned"+hostile, "Node", "node-003"+hostile, hostile, time.Minute)
	objects := []runtime.Object{
		newPod("shop", "cart", "node-003"), newPod("ops", "tool", "node-003"), newPod("shop", "web", "node-003"),
		nm, cordon(), blocker, waits, happened,
	}
	return append(objects, hostileRollout()...)
}

// hostilePreview adds the hostile text to previews.
func hostilePreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			for i := range p.Blockers {
				p.Blockers[i].Message, p.Blockers[i].Reason = hostile, "Unknown"+hostile
				p.Blockers[i].Pods[0].Name = "web" + hostile
			}
			p.Waves[0].Nodes[0].Namespaces[0].Pods[0].Name = "web" + hostile
			p.Waves[0].Evacuators[0].EvacuatorClass = "flush" + hostile
			p.PodsKept[0].Reason, p.Maintenances[0].Name = hostile, "other"+hostile
			p.Nodes[0].Refused, p.Nodes[0].Message = true, hostile
			return true, p, nil
		},
	)
}

// refuses makes the server refuse all requests with the hostile text.
func refuses(w *world) {
	w.haulout.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), "x", errors.New(hostile))
	})
}

// TestAQuestionDoesNotControlTheTerminal asks a question with the hostile text.
func TestAQuestionDoesNotControlTheTerminal(t *testing.T) {
	w := newWorld(t, "n\n")
	interactive(w)
	w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewASCIITerminal(out, 80, 24) }
	is.True(t, w.confirm(t.Context(), hostile, "") != nil, "it is confirmed")
	for _, r := range w.err.String() {
		is.True(t, r < utf8.RuneSelf && unicode.IsPrint(r), "%q has %U", w.err.String(), r)
	}
}

// own are the control sequences with which the plugin itself redraws lines.
var own = regexp.MustCompile(`\x1b\[\d+A\x1b\[J`)

// TestHostileTextsDoNotControlTheTerminal runs every command against an API whose texts are full of
// control characters.
func TestHostileTextsDoNotControlTheTerminal(t *testing.T) {
	for name, g := range map[string]golden{
		"rollout status":            {line: "rollout status"},
		"rollout status wide":       {line: "rollout status kernel-6-12 -o wide"},
		"take a taken node":         {line: "take node-003"},
		"take a node again":         {line: "take node-004"},
		"status":                    {line: "status kernel-update"},
		"status wide":               {line: "status kernel-update -o wide"},
		"status of all":             {line: "status"},
		"status as YAML":            {line: "status kernel-update -o yaml"},
		"status as JSON":            {line: "status kernel-update -o json"},
		"status by path":            {line: "status kernel-update -o jsonpath={.spec.reason}"},
		"blockers":                  {line: "blockers"},
		"blockers of one":           {line: "blockers kernel-update"},
		"blockers wide":             {line: "blockers -o wide"},
		"history":                   {line: "history kernel-update"},
		"history as JSON":           {line: "history kernel-update -o json"},
		"history as YAML":           {line: "history kernel-update -o yaml"},
		"preview":                   {line: "preview kernel-update"},
		"preview wide":              {line: "preview kernel-update -o wide"},
		"what waiting shows":        {line: "stage kernel-update Drain --wait --timeout=1m"},
		"complete that takes long":  {line: "complete kernel-update --timeout=1m"},
		"an error of the server":    {line: "start node-003", arrange: refuses},
		"an error while it drains":  {line: "drain node-003", arrange: refuses},
		"an error of the preview":   {line: "preview node-003", arrange: refuses},
		"an error of the blockers":  {line: "blockers", arrange: refuses},
		"an error of the history":   {line: "history kernel-update", arrange: refuses},
		"start that previews first": {line: "start node-003"},
		"explain":                   {line: "explain pod/cart --namespace=shop"},
		"explain before the drain":  {line: "explain pod/tool --namespace=ops"},
		"resume":                    {line: "resume kernel-update", arrange: isPaused},
		"wait for a paused drain":   {line: "wait kernel-update --timeout=1m", arrange: isPaused},
		"wait for an evacuation":    {line: "evacuate web --namespace=shop --wait --timeout=1m"},
		"an unknown command":        {line: "dr\x1b[2Jain"},
		"a version":                 {line: "version", arrange: hostileVersion},
	} {
		for where, terminal := range map[string]func(io.Writer, int, int) *screen.Screen{
			"terminal": screen.NewTerminal, "terminal of the locale C": screen.NewASCIITerminal, "pipe": nil,
		} {
			if terminal == nil && isDocument(g.line) {
				continue // In a pipe, documents are not escaped.
			}
			bubble.Run(t, name+" on a "+where, func(t *testing.T) {
				showsNothingHostile(t, g, terminal, func(r rune) bool {
					return unicode.IsPrint(r) && (r < utf8.RuneSelf || !strings.HasSuffix(where, " C"))
				})
			})
		}
	}
}

// isDocument reports whether a command line requests a machine-readable format.
func isDocument(line string) bool {
	return strings.Contains(line, "-o ") && !strings.Contains(line, "-o wide")
}

func showsNothingHostile(t *testing.T, g golden, terminal func(io.Writer, int, int) *screen.Screen, isHarmless func(rune) bool) {
	t.Helper()
	w := newWorld(t, "", hostileCluster()...)
	hostilePreview(w)
	if g.arrange != nil {
		g.arrange(w)
	}
	if terminal != nil {
		w.environment.screen = func(out io.Writer) *screen.Screen { return terminal(out, 200, 100) }
	}
	w.run(t.Context(), strings.Fields(g.line))
	shown := w.out.String() + "\n" + w.err.String()
	is.True(t, strings.TrimSpace(shown) != "", "it shows nothing")
	for line := range strings.Lines(own.ReplaceAllString(shown, "")) {
		line = strings.TrimSuffix(line, "\n")
		for _, r := range line {
			must.True(t, isHarmless(r), "%q has %U", line, r)
		}
		// A document may have such a line.
		is.True(t, !strings.HasPrefix(line, "evil") || isDocument(g.line), "%q looks like a line of the plugin", line)
	}
}
