// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"

	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestWentBack(t *testing.T) {
	for name, test := range map[string]struct {
		play func(p *tape)
		want []string
	}{
		"targets that rise are right": {play: func(p *tape) {
			p.reach("a", 1000, "one")
			p.reach("a", 2000, "one", "two")
		}},
		"targets that fall in one status": {
			want: []string{"node one were lowered in the status of a"},
			play: func(p *tape) {
				p.reach("a", 2000, "one")
				p.reach("a", 1000, "one")
			},
		},
		"targets that vanish from a status": {
			want: []string{"node one were lowered in the status of a"},
			play: func(p *tape) {
				p.reach("a", 2000, "one")
				p.nms["a"].Status.NodeStatuses[0].DrainTargets = nil
				p.onOurs(watch.Modified, p.nms["a"])
			},
		},
		"a node that is released and taken again starts over": {play: func(p *tape) {
			p.reach("a", 2000, "one")
			p.reach("a", 0)
			p.reach("a", 1000, "one")
		}},
		"a node of another UID starts over": {play: func(p *tape) {
			p.reach("a", 2000, "one")
			p.nms["a"].Status.NodeStatuses[0] = v1alpha1.NodeMaintenanceNodeStatus{
				NodeRef: v1alpha1.NodeReference{Name: "one", UID: "again"}, DrainTargets: plan(1000),
			}
			p.onOurs(watch.Modified, p.nms["a"])
		}},
		"what all had agreed on is forgotten when one lets go": {
			want: []string{"node one were lowered when a released it"},
			play: func(p *tape) {
				p.drain("b", "blue")
				p.reach("a", 2000, "one")
				p.reach("b", 2000, "one")
				p.drain("c", "blue")
				p.reach("c", 1000, "one")
				p.complete("b")
				p.complete("a")
			},
		},
		"what not all had heard of may be forgotten": {play: func(p *tape) {
			p.drain("b", "blue")
			p.reach("b", 1000, "one")
			p.reach("a", 1000, "one")
			p.reach("a", 2000, "one")
			p.complete("a")
		}},
		"what one has not written down yet is not agreed on": {play: func(p *tape) {
			p.drain("b", "blue")
			p.drain("c", "blue")
			p.silent("b", "one")
			p.reach("c", 1000, "one")
			p.reach("a", 2000, "one")
			p.reach("c", 2000, "one")
			p.complete("c")
			p.complete("a")
			p.reach("b", 1000, "one")
			p.drain("d", "blue")
			p.reach("d", 1000, "one")
			p.complete("d")
		}},
		"one that comes when the last that knew lets go starts over": {play: func(p *tape) {
			p.reach("a", 2000, "one")
			p.drain("b", "blue")
			p.silent("b", "one")
			p.complete("a")
			p.reach("b", 1000, "one")
			p.drain("c", "blue")
			p.reach("c", 1000, "one")
			p.complete("c")
		}},
		"one that comes and takes nothing over": {
			want: []string{"node one were lowered when a released it"},
			play: func(p *tape) {
				p.reach("a", 2000, "one")
				p.drain("b", "blue")
				p.reach("b", 1000, "one")
				p.complete("a")
			},
		},
		"the last to let go forgets": {play: func(p *tape) {
			p.reach("a", 2000, "one")
			p.complete("a")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			begin(p)
			p.drain("a", "blue")
			test.play(p)
			expect(t, wentBack(p.log), test.want...)
		})
	}
}
