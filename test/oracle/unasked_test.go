// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUnasked(t *testing.T) {
	tests := map[string]struct {
		play func(*tape)
		want []string
	}{
		"a maintenance drains the node": {play: func(p *tape) { p.drain("drain", "a"); p.evict("web") }},
		"no maintenance was ever there": {
			play: func(p *tape) { p.evict("web") }, want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it drains other nodes": {
			play: func(p *tape) { p.drain("drain", "b"); p.evict("web") },
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it came later": {
			play: func(p *tape) {
				p.evict("web")
				p.host += 10
				p.drain("drain", "a")
				p.nms["drain"].CreationTimestamp = metav1.NewTime(p.now())
				p.reach("drain", 1000, "a1")
			},
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it was over a moment ago": {
			play: func(p *tape) { p.drain("drain", "a"); p.complete("drain"); p.evict("web") },
		},
		"it was over long ago": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.complete("drain")
				p.host += int(stopTime/time.Second) + 1
				p.evict("web")
			},
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"another one drains it": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.drain("other", "a,b")
				p.complete("drain")
				p.host += 100
				p.evict("web")
			},
		},
		"somebody else evicts": {play: func(p *tape) { p.evict("web"); p.calls[0].User = "alice" }},
		"a budget refused":     {play: func(p *tape) { p.evict("web"); p.calls[0].Code = 429 }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			p.node("a1", "a")
			p.node("b1", "b")
			p.pod("web", "a1", 0)
			p.h.Begin()
			tt.play(p)
			found, err := p.h.Unasked(p.calls, "haulout")
			if err != nil {
				t.Fatal(err)
			}
			expect(t, found, tt.want...)
		})
	}
}
