// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestExitCodesAreExplainedOnce compares the sentences of the help with those of the page.
func TestExitCodesAreExplainedOnce(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../../docs/kubectl-plugin.md"))(t))
	page = strings.NewReplacer("`", "", "\u201c", "", "\u201d", "").Replace(page)
	oneLine := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	for _, c := range exitCodes {
		is.True(t, strings.Contains(page, fmt.Sprintf("| %d | %s |", c.code, c.meaning)), "the page has not this meaning of %d: %s", c.code, c.meaning)
		is.True(t, strings.Contains(oneLine(help()), fmt.Sprintf("%d %s", c.code, c.meaning)), "the help has not the meaning of %d", c.code)
	}
	for line := range strings.Lines(help()) {
		is.True(t, len(line) <= helpColumns+1, "%q has more than %d columns", line, helpColumns)
	}
}

// TestTheQuestionIsEscaped asks about nodes and maintenances with names that control a terminal.
func TestTheQuestionIsEscaped(t *testing.T) {
	for name, newScreen := range map[string]func(io.Writer, int, int) *screen.Screen{
		"UTF-8": screen.NewTerminal, "ASCII": screen.NewASCIITerminal,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "y\n")
			interactive(w)
			w.environment.screen = func(out io.Writer) *screen.Screen { return newScreen(out, 80, 24) }
			must.Do(t, w.confirm(t.Context(), "node \u015b"+hostile, "Use --yes."))
			for _, r := range w.err.String() {
				must.True(t, unicode.IsPrint(r) && (name != "ASCII" || r < unicode.MaxASCII), "%q has %U", w.err.String(), r)
			}
		})
	}
}

// TestErrorsBeginInLowerCase checks the first letter of each error in the golden files.
func TestErrorsBeginInLowerCase(t *testing.T) {
	capital := regexp.MustCompile(`(?m)^error: [A-Z].*`)
	for _, entry := range must.Get(os.ReadDir("testdata"))(t) {
		if entry.IsDir() {
			continue
		}
		text := must.Get(os.ReadFile("testdata/" + entry.Name()))(t)
		is.Equal(t, string(capital.Find(text)), "", entry.Name())
	}
}

// TestWritesAreNotThoseOfKubectl checks the field manager of a pause: Flux undoes what managers
// with the prefix kubectl have set.
func TestWritesAreNotThoseOfKubectl(t *testing.T) {
	w := newWorld(t, "", everything()...)
	is.Equal(t, w.run(t.Context(), []string{"pause", "kernel-update"}), exitDone, "exit code")
	written := 0
	for _, action := range w.haulout.Actions() {
		if patch, ok := action.(clienttesting.PatchActionImpl); ok {
			by := patch.PatchOptions.FieldManager
			is.True(t, by != "" && !strings.HasPrefix(by, "kubectl"), "the manager is %q", by)
			written++
		}
	}
	is.Equal(t, written, 1, "patches")
}

// TestNamesIn checks which selectors can only match nodes that they name.
func TestNamesIn(t *testing.T) {
	named := func(operator corev1.NodeSelectorOperator, names ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: operator, Values: names}}}
	}
	labels := []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpExists}}
	narrowed := named(corev1.NodeSelectorOpIn, "b")
	narrowed.MatchExpressions = labels
	for name, test := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  []string
	}{
		"names":                       {[]corev1.NodeSelectorTerm{named(corev1.NodeSelectorOpIn, "a"), narrowed}, []string{"a", "b"}},
		"all but a name":              {[]corev1.NodeSelectorTerm{named(corev1.NodeSelectorOpNotIn, "a")}, nil},
		"a name or labels":            {[]corev1.NodeSelectorTerm{named(corev1.NodeSelectorOpIn, "a"), {MatchExpressions: labels}}, nil},
		"no term, which matches none": {nil, nil},
	} {
		got := namesIn(&corev1.NodeSelector{NodeSelectorTerms: test.terms})
		is.True(t, slices.Equal(got, test.want), "%s: got %v, want %v", name, got, test.want)
	}
}

// TestABlockedWaitGoesOn waits without --timeout for nodes that the requester may not maintain: the
// right may be granted later.
func TestABlockedWaitGoesOn(t *testing.T) {
	w := newWorld(t, "", doesNotHold(v1alpha1.NodeStatusNotAuthorized))
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	ended := w.background(ctx, "wait", "zone-a")
	eventually(t, w.out, "zone-a: NotAuthorized, 1 node")
	select {
	case code := <-ended:
		t.Fatalf("it ended with %d: %s", code, w.err.String())
	case <-time.After(2 * redrawAfter):
	}
	nm := cordon()
	nm.Generation, nm.Status.ObservedGeneration = 2, 2
	must.Get(w.haulout.MaintenanceV1alpha1().NodeMaintenances().Update(t.Context(), nm, metav1.UpdateOptions{}))(t)
	is.Equal(t, <-ended, exitDone, "exit code when the right is granted")
}

// TestTheEndAtTheDeadline deletes the Evacuation of a pod that has left while the timeout passes:
// what became of the pod is read nevertheless.
func TestTheEndAtTheDeadline(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"web-1","kind":"pods"},"code":404}`)
	}))
	defer server.Close()
	w := newWorld(t, "")
	c := clients{kube: must.Get(kubernetes.NewForConfig(&rest.Config{Host: server.URL}))(t), haulout: w.haulout}
	o := timeout{Duration: time.Nanosecond}
	ctx, cancel := o.begin(t.Context())
	defer cancel()
	<-ctx.Done()
	must.Do(t, w.afterDeletion(ctx, c, evacuation("shop", "web-1", "node-003"), "shop/web-1"))
}
