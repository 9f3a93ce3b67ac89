// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

const (
	// SettleTime is how long after a cordon was seen the scheduler may still bind a pod that it had
	// placed before.
	SettleTime = 5 * time.Second
	// FightWindow is the time within which removals of a cordon count.
	FightWindow = 10 * time.Minute
	// FightLimit is how often a cordon may be removed within FightWindow before it is a fight.
	FightLimit = 3
	// FightPause is how long a cordon that is fought over stays removed before it is restored.
	FightPause = time.Minute
)

// Cordons remembers since when nodes have been seen cordoned, for which maintenances they are known
// to be drained since, how often another client removed our cordon, and for which maintenance a
// cordon of any origin was removed. A restart forgets it: then the scheduler is waited for once
// more, what is shown as drained is confirmed once more, and a fight is noticed a little later. It
// is safe for concurrent use.
type Cordons struct {
	clock  clock.PassiveClock
	byNode loop.Memory[types.UID, cordon]
}

// cordon is what is remembered of a node. Its slices and sets are never changed.
type cordon struct {
	// since is when the node was first seen cordoned, zero if it is not.
	since    time.Time
	restores []time.Time
	// lifted are the maintenances that exist to uncordon, and had that effect.
	lifted sets.Set[types.UID]
	// drained tells for which maintenances a live list has confirmed that the node is drained,
	// since it is cordoned, and for which pods are left.
	drained map[types.UID]bool
	// uncordoned: this leader has seen the node not cordoned, so what another one has found is out
	// of date.
	uncordoned bool
}

func newCordons(clock clock.PassiveClock) *Cordons { return &Cordons{clock: clock} }

func (c *Cordons) of(node *corev1.Node) cordon {
	known, _ := c.byNode.Get(node.UID)
	return known
}

func (c *Cordons) change(node *corev1.Node, change func(*cordon)) {
	c.byNode.Change(node.UID, func(known cordon, _ bool) (cordon, bool) {
		change(&known)
		return known, true
	})
}

// observe takes in what the cache says of a node.
func (c *Cordons) observe(node *corev1.Node) {
	c.change(node, func(known *cordon) {
		switch {
		case !node.Spec.Unschedulable:
			known.since, known.drained, known.uncordoned = time.Time{}, nil, true
		case known.since.IsZero():
			known.since = c.clock.Now()
		}
	})
}

// Since returns when a node was first seen cordoned, zero if it is not cordoned.
func (c *Cordons) Since(node *corev1.Node) time.Time { return c.of(node).since }

// Unsettled returns how long it takes until the last of the nodes has been seen cordoned for long
// enough.
func (c *Cordons) Unsettled(nodes ...*corev1.Node) time.Duration {
	now, longest := c.clock.Now(), time.Duration(0)
	for _, node := range nodes {
		since := c.of(node).since
		if since.IsZero() {
			return SettleTime
		}
		longest = max(longest, SettleTime-now.Sub(since))
	}
	return longest
}

// IsDrained reports whether a node is known to be drained for a maintenance: a live list of this
// leader has confirmed it, or, if it is shown as drained, one of another leader and nothing speaks
// against it.
func (c *Cordons) IsDrained(node *corev1.Node, maintenance types.UID, shown bool) bool {
	known := c.of(node)
	drained, found := known.drained[maintenance]
	return drained || !found && shown && !known.uncordoned
}

// noteDrained notes whether a node is drained for a maintenance, and reports whether that is news.
// What was found under an earlier cordon is ignored: pods may have been bound since.
func (c *Cordons) noteDrained(node *corev1.Node, maintenance types.UID, drained bool, cordoned time.Time) (isNew bool) {
	c.change(node, func(known *cordon) {
		was, found := known.drained[maintenance]
		if isNew = !known.since.IsZero() && known.since.Equal(cordoned) && (!found || was != drained); !isNew {
			return
		}
		known.drained = maps.Clone(known.drained)
		if known.drained == nil {
			known.drained = map[types.UID]bool{}
		}
		known.drained[maintenance] = drained
	})
	return isNew
}

// IsFight reports whether it has become a fight if our cordon is restored now.
func (c *Cordons) IsFight(node *corev1.Node) bool {
	return len(c.recent(c.of(node))) >= FightLimit
}

// Fought reports whether a cordon was removed so often that its node is left out of the waves, and
// since when.
func (c *Cordons) Fought(node *corev1.Node) (time.Time, bool) {
	recent := c.recent(c.of(node))
	if len(recent) <= FightLimit {
		return time.Time{}, false
	}
	return recent[0], true
}

// Restored notes that our cordon was restored.
func (c *Cordons) Restored(node *corev1.Node) {
	c.change(node, func(known *cordon) { known.restores = append(c.recent(*known), c.clock.Now()) })
}

// BackOff returns how long to wait before a removed cordon is restored.
func (c *Cordons) BackOff(node *corev1.Node) time.Duration {
	recent := c.recent(c.of(node))
	if len(recent) <= FightLimit {
		return 0
	}
	return FightPause - c.clock.Since(recent[len(recent)-1])
}

// recent returns the restores that still count.
func (c *Cordons) recent(known cordon) []time.Time {
	now := c.clock.Now()
	return slices.DeleteFunc(slices.Clone(known.restores), func(t time.Time) bool { return now.Sub(t) > FightWindow })
}

// forget drops what is remembered of a node that is gone.
func (c *Cordons) forget(node *corev1.Node) { c.byNode.Forget(node.UID) }

// noteLifted notes that a maintenance that exists to uncordon its nodes has had its effect on a
// node: one that is cordoned again after that is meant to be.
func (c *Cordons) noteLifted(node *corev1.Node, maintenance types.UID) {
	c.change(node, func(known *cordon) { known.lifted = known.lifted.Clone().Insert(maintenance) })
}

// IsLifted reports whether noteLifted was called for a node and a maintenance.
func (c *Cordons) IsLifted(node *corev1.Node, maintenance types.UID) bool {
	return c.of(node).lifted.Has(maintenance)
}

// TaintKeys are the keys of the taints that the server may add, in the order in which it adds them.
var TaintKeys = []string{v1alpha1.TaintHeld, v1alpha1.TaintDrain}

// Taint returns the taint of a key.
func Taint(key string) corev1.Taint {
	if key == v1alpha1.TaintHeld {
		return corev1.Taint{Key: key, Effect: corev1.TaintEffectPreferNoSchedule}
	}
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
}

// IsTaint reports whether a taint is ours of the given key.
func IsTaint(taint corev1.Taint, key string) bool {
	want := Taint(key)
	return taint.Key == want.Key && taint.Effect == want.Effect
}

// HasTaint reports whether a node has our taint of the given key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return IsTaint(taint, key) })
}

// SameTaints reports whether two states of a node have the same taints of ours.
func SameTaints(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(TaintKeys, func(key string) bool { return HasTaint(a, key) != HasTaint(b, key) })
}
