// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	scaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	doNotDisrupt      = "karpenter.sh/do-not-disrupt"
)

func TestDecideProtection(t *testing.T) {
	m, both := marks.Owners{"m": "uid-m"}, marks.Owners{"m": "uid-m", "o": "uid-o"}
	all := []string{scaleDownDisabled, doNotDisrupt}
	with := func(pairs ...string) map[string]string {
		out := map[string]string{"theirs": "x"}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return out
	}
	protectedBoth := with(scaleDownDisabled, "true", doNotDisrupt, "true")
	for name, test := range map[string]struct {
		annotations map[string]string
		holders     marks.Owners
		// recorded are the annotations that the server has added; held is set if the node was held.
		recorded               []string
		held, off, revoked     bool
		want                   map[string]string
		wantRecord             []string
		unchanged, anotherMark bool
	}{
		"a node that is not held is not changed": {annotations: with(), want: with(), unchanged: true},
		"a held node gets both annotations":      {annotations: with(), holders: m, want: protectedBoth, wantRecord: all},
		"a protected node stays as it is": {
			annotations: protectedBoth, holders: m, held: true, recorded: all, want: protectedBoth, wantRecord: all, unchanged: true,
		},
		"a node that an older server has held gets both": {annotations: with(), holders: m, held: true, want: protectedBoth, wantRecord: all},
		"an annotation that was there is not ours": {
			annotations: with(doNotDisrupt, "true"), holders: m, want: protectedBoth, wantRecord: []string{scaleDownDisabled, declined + doNotDisrupt},
		},
		"an annotation that was there keeps its value": {
			annotations: with(doNotDisrupt, "false"), holders: m, want: with(scaleDownDisabled, "true", doNotDisrupt, "false"),
			wantRecord: []string{scaleDownDisabled, declined + doNotDisrupt},
		},
		"one that was there, and that a user removes, stays away": {
			annotations: with(scaleDownDisabled, "true"), holders: m, held: true, recorded: []string{scaleDownDisabled, declined + doNotDisrupt},
			want: with(scaleDownDisabled, "true"), wantRecord: []string{scaleDownDisabled, declined + doNotDisrupt}, unchanged: true,
		},
		"one that was there is not removed": {
			annotations: protectedBoth, held: true, recorded: []string{scaleDownDisabled, declined + doNotDisrupt}, want: with(doNotDisrupt, "true"),
		},
		"one that a user removes is not added again": {
			annotations: with(doNotDisrupt, "true"), holders: m, held: true, recorded: all, want: with(doNotDisrupt, "true"),
			wantRecord: []string{declined + scaleDownDisabled, doNotDisrupt},
		},
		"one that a user has removed stays away": {
			annotations: with(doNotDisrupt, "true"), holders: m, held: true, recorded: []string{declined + scaleDownDisabled, doNotDisrupt},
			want: with(doNotDisrupt, "true"), wantRecord: []string{declined + scaleDownDisabled, doNotDisrupt}, unchanged: true,
		},
		"one that a user has removed and added again is his": {
			annotations: protectedBoth, held: true, recorded: []string{declined + scaleDownDisabled, doNotDisrupt},
			want: with(scaleDownDisabled, "true"),
		},
		"a second maintenance adds none": {
			annotations: with(doNotDisrupt, "true"), holders: both, held: true, recorded: all, want: with(doNotDisrupt, "true"),
			wantRecord: []string{declined + scaleDownDisabled, doNotDisrupt},
		},
		"ours are removed with the last maintenance": {annotations: protectedBoth, held: true, recorded: all, want: with()},
		"that of another client stays": {
			annotations: protectedBoth, held: true, recorded: all[:1], want: with(doNotDisrupt, "true"),
		},
		"one that a user has changed stays": {
			annotations: with(scaleDownDisabled, "false", doNotDisrupt, "true"), held: true, recorded: all, want: with(scaleDownDisabled, "false"),
		},
		"none is added without the flag": {annotations: with(), holders: m, off: true, want: with()},
		"ours are removed when the flag is turned off": {
			annotations: protectedBoth, holders: m, held: true, recorded: all, off: true, want: with(),
		},
		"none is added for a requester without the right": {annotations: with(), holders: m, held: true, revoked: true, want: with(), unchanged: true},
		"ours stay although the requester has lost the right": {
			annotations: protectedBoth, holders: m, held: true, recorded: all, revoked: true, want: protectedBoth, wantRecord: all, unchanged: true,
		},
		"none is added while the mark is from another storage": {annotations: with(), holders: m, anotherMark: true, want: with(), unchanged: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts{
				node: newNode("n", cordoned, func(node *corev1.Node) { node.Annotations = test.annotations }), holders: test.holders,
				protect: !test.off, protections: test.recorded, mayWork: len(test.holders) > 0 && !test.revoked,
			}
			if test.held || test.anotherMark {
				taintedWith(heldTaint)(f.node)
			}
			if test.held {
				f.taint, f.added = m, nodestate.TaintKeys[:1]
			}
			f.foreignTaint = test.anotherMark
			change := decide(f)
			got := maps.Clone(test.annotations)
			for _, key := range change.protect {
				got[key] = "true"
			}
			for _, key := range change.unprotect {
				delete(got, key)
			}
			is.True(t, maps.Equal(got, test.want), "got annotations %v, want %v", got, test.want)
			is.Equal(t, change.empty(), test.unchanged, "no change")
			if !test.unchanged {
				is.Slices(t, change.protections, test.wantRecord, "recorded")
			}
		})
	}
}

// TestProtectionIsWritten writes a decision, and reads back what it has recorded.
func TestProtectionIsWritten(t *testing.T) {
	node := newNode("n", func(node *corev1.Node) { node.Annotations = map[string]string{doNotDisrupt: "true"} })
	change := decide(facts{node: node, holders: marks.Owners{"m": "uid-m"}, protect: true, mayWork: true})
	patched, _ := fieldsOf("storage", change)
	is.Equal(t, patched[scaleDownDisabled], "true", scaleDownDisabled)
	_, written := patched[doNotDisrupt]
	is.True(t, !written, "the patch writes the annotation of another client")
	stored := newNode("n", func(node *corev1.Node) {
		node.Annotations = map[string]string{}
		for key, value := range patched {
			node.Annotations[key], _ = value.(string)
		}
	})
	if got := marks.ReadProtection(stored).Annotations; !slices.Equal(got, []string{scaleDownDisabled, declined + doNotDisrupt}) {
		t.Errorf("the mark records %q, want %s, and %s as declined", got, scaleDownDisabled, doNotDisrupt)
	}
}

func TestProtectionEnqueuesNodes(t *testing.T) {
	bare := newNode("n")
	annotated := newNode("n", func(node *corev1.Node) { node.Annotations = map[string]string{doNotDisrupt: "true"} })
	is.True(t, !sameNode(bare, annotated), "a node whose protection has changed is not reconciled")
	is.True(t, sameNode(bare, newNode("n", func(node *corev1.Node) { node.Annotations = map[string]string{"theirs": "x"} })),
		"a node is reconciled after a change of another annotation")
}
