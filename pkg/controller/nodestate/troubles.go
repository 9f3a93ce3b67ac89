// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// VisibleAfter is how long something fails before the API shows it.
const VisibleAfter = time.Minute

// Trouble is why something about a node fails, and since when.
type Trouble struct {
	Since time.Time
	Text  string
}

// Troubles remembers what fails about nodes, by node and by what it is about. It may be dropped at
// any time: what still fails comes back, as of then. It is safe for concurrent use.
type Troubles struct {
	clock   clock.PassiveClock
	changed func(node string)

	mu     sync.Mutex
	byNode map[string]map[string]Trouble
}

func newTroubles(clock clock.PassiveClock, changed func(node string)) *Troubles {
	return &Troubles{clock: clock, changed: changed, byNode: map[string]map[string]Trouble{}}
}

// Note takes in the outcome of an attempt; an empty text ends the trouble.
func (t *Troubles) Note(node, about, text string) {
	t.mu.Lock()
	before, had := t.byNode[node][about]
	switch {
	case text == "":
		delete(t.byNode[node], about)
		if len(t.byNode[node]) == 0 {
			delete(t.byNode, node)
		}
	case had:
		t.byNode[node][about] = Trouble{Since: before.Since, Text: text}
	default:
		if t.byNode[node] == nil {
			t.byNode[node] = map[string]Trouble{}
		}
		t.byNode[node][about] = Trouble{Since: t.clock.Now(), Text: text}
	}
	t.mu.Unlock()
	if had != (text != "") {
		t.changed(node)
	}
}

// End ends what fails about something, on whatever node.
func (t *Troubles) End(about string) {
	t.mu.Lock()
	var nodes []string
	for node, troubles := range t.byNode {
		if _, had := troubles[about]; had {
			nodes = append(nodes, node)
		}
	}
	t.mu.Unlock()
	for _, node := range nodes {
		t.Note(node, about, "")
	}
}

// Of returns what fails about a node and has failed for long enough to be shown: the oldest
// trouble. If none has, next is how long it takes until one is to be shown, 0 if nothing fails.
func (t *Troubles) Of(node string) (visible *Trouble, next time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var oldest *Trouble
	for _, trouble := range t.byNode[node] {
		if oldest == nil || trouble.Since.Before(oldest.Since) || trouble.Since.Equal(oldest.Since) && trouble.Text < oldest.Text {
			oldest = &trouble
		}
	}
	if oldest == nil {
		return nil, 0
	}
	if wait := VisibleAfter - t.clock.Since(oldest.Since); wait > 0 {
		return nil, wait
	}
	return oldest, 0
}

// Forget drops what is remembered of a node.
func (t *Troubles) Forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byNode, node)
}

// maxText bounds the text of an error, in bytes.
const maxText = 512

// TextOf returns one line about an error. Of several errors it quotes the one that sorts first, so
// that the text stays the same while they fail in another order.
func TextOf(err error) string {
	all := flatten(err)
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.Error()
	}
	slices.Sort(texts)
	more := ""
	if len(texts) > 1 {
		more = fmt.Sprintf(" and %d more errors", len(texts)-1)
	}
	return drainplan.Fit(texts[0], maxText-len(more)) + more
}

// flatten returns the single errors of an error that consists of several.
func flatten(err error) []error {
	var parts []error
	switch e := any(err).(type) {
	case interface{ Errors() []error }:
		parts = e.Errors()
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil && inner.Error() == err.Error() {
			return flatten(inner)
		}
	}
	var out []error
	for _, part := range parts {
		out = append(out, flatten(part)...)
	}
	if len(out) == 0 {
		return []error{err}
	}
	return out
}
