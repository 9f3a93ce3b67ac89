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
	// SettleTime is the time after a cordon during which the scheduler may still bind a pod that it
	// assigned to the node before.
	SettleTime = 5 * time.Second
	// FightWindow is the period in which removals of a cordon are counted.
	FightWindow = 10 * time.Minute
	// FightLimit is how often another client may remove a cordon within FightWindow before it
	// counts as a fight.
	FightLimit = 3
	// FightPause is how long the server waits before it restores a cordon in a fight.
	FightPause = time.Minute
)

// Cordons records since when nodes are cordoned, for which maintenances they are confirmed as
// drained, how often another client removed our cordon, and which maintenances that only uncordon
// have uncordoned them. A new leader starts without records: it waits for the scheduler again,
// confirms drained nodes again, and notices later that another client keeps removing a cordon.
// Cordons is safe for concurrent use.
type Cordons struct {
	clock  clock.PassiveClock
	byNode loop.Memory[types.UID, cordon]
}

// cordon is the record of a node. Its slices, maps and sets are immutable.
type cordon struct {
	// since is the time at which the node was first observed as cordoned, zero if it is not
	// cordoned.
	since    time.Time
	restores []time.Time
	// lifted has the maintenances that only uncordon and have uncordoned the node.
	lifted sets.Set[types.UID]
	// drained has, by maintenance, the result of the last live list since the cordon: true if the
	// node is drained, false if it has pods left.
	drained map[types.UID]bool
	// uncordoned is set if this leader has observed the node without a cordon. What the previous
	// leader confirmed is then outdated.
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

// observe records whether a cached node is cordoned.
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

// Since returns the time at which a node was first observed as cordoned, zero if it is not
// cordoned.
func (c *Cordons) Since(node *corev1.Node) time.Time { return c.of(node).since }

// Unsettled returns how long it takes until all of the nodes have been cordoned for SettleTime.
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

// IsDrained reports whether a node is confirmed as drained for a maintenance. shown is true if a
// status already reports the node as drained. Then the confirmation of a previous leader is
// sufficient, unless this leader has found pods on the node, or observed it without a cordon.
func (c *Cordons) IsDrained(node *corev1.Node, maintenance types.UID, shown bool) bool {
	known := c.of(node)
	drained, found := known.drained[maintenance]
	return drained || !found && shown && !known.uncordoned
}

// noteDrained records whether a node is drained for a maintenance, and reports whether this is a
// change. It ignores a result that was determined during an earlier cordon: pods may have been
// bound since.
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

// IsFight reports whether another client has removed our cordon so often that restoring it now
// counts as a fight.
func (c *Cordons) IsFight(node *corev1.Node) bool {
	return len(c.recent(c.of(node))) >= FightLimit
}

// Fought reports whether a cordon was removed so often that no wave includes its node, and since
// when.
func (c *Cordons) Fought(node *corev1.Node) (time.Time, bool) {
	recent := c.recent(c.of(node))
	if len(recent) <= FightLimit {
		return time.Time{}, false
	}
	return recent[0], true
}

// Restored records that this server has restored its cordon.
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

// recent returns the times of the restores within FightWindow.
func (c *Cordons) recent(known cordon) []time.Time {
	now := c.clock.Now()
	return slices.DeleteFunc(slices.Clone(known.restores), func(t time.Time) bool { return now.Sub(t) > FightWindow })
}

func (c *Cordons) forget(node *corev1.Node) { c.byNode.Forget(node.UID) }

// noteLifted records that a maintenance which only uncordons has uncordoned a node. A later cordon
// of the node is intended and stays.
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

// IsTaint reports whether a taint is our taint with the given key.
func IsTaint(taint corev1.Taint, key string) bool {
	want := Taint(key)
	return taint.Key == want.Key && taint.Effect == want.Effect
}

// HasTaint reports whether a node has our taint with the given key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return IsTaint(taint, key) })
}

// SameTaints reports whether two states of a node have the same taints of ours.
func SameTaints(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(TaintKeys, func(key string) bool { return HasTaint(a, key) != HasTaint(b, key) })
}
