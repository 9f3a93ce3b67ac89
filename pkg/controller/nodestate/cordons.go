// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
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

// Cordons remembers since when nodes have been seen cordoned, how often another client removed our
// cordon, and for which maintenance a cordon of any origin was removed. A restart forgets it: then
// the scheduler is waited for once more, and a fight is noticed a little later. It is safe for
// concurrent use.
type Cordons struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	since    map[types.UID]time.Time
	restores map[types.UID][]time.Time
	// lifted are the maintenances that exist to uncordon, by node.
	lifted map[types.UID]sets.Set[types.UID]
}

func newCordons(clock clock.PassiveClock) *Cordons {
	return &Cordons{
		clock: clock, since: map[types.UID]time.Time{}, restores: map[types.UID][]time.Time{}, lifted: map[types.UID]sets.Set[types.UID]{},
	}
}

// observe takes in what the cache says of a node.
func (c *Cordons) observe(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !node.Spec.Unschedulable {
		delete(c.since, node.UID)
		return
	}
	if _, known := c.since[node.UID]; !known {
		c.since[node.UID] = c.clock.Now()
	}
}

// Unsettled returns how long it takes until the last of the nodes has been seen cordoned for long
// enough.
func (c *Cordons) Unsettled(nodes []*corev1.Node) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, longest := c.clock.Now(), time.Duration(0)
	for _, node := range nodes {
		since, known := c.since[node.UID]
		if !known {
			return SettleTime
		}
		longest = max(longest, SettleTime-now.Sub(since))
	}
	return longest
}

// Latest returns when the last of the nodes was first seen cordoned; now, if one of them is not.
func (c *Cordons) Latest(nodes []*corev1.Node) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	var latest time.Time
	for _, node := range nodes {
		since, known := c.since[node.UID]
		if !known {
			return c.clock.Now()
		}
		if since.After(latest) {
			latest = since
		}
	}
	return latest
}

// IsFight reports whether it has become a fight if our cordon is restored now.
func (c *Cordons) IsFight(node *corev1.Node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.recent(node.UID)) >= FightLimit
}

// Fought reports whether a cordon was removed so often that its node is left out of the waves, and
// since when.
func (c *Cordons) Fought(node *corev1.Node) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	recent := c.recent(node.UID)
	if len(recent) <= FightLimit {
		return time.Time{}, false
	}
	return recent[0], true
}

// Restored notes that our cordon was restored.
func (c *Cordons) Restored(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restores[node.UID] = append(c.recent(node.UID), c.clock.Now())
}

// BackOff returns how long to wait before a removed cordon is restored.
func (c *Cordons) BackOff(node *corev1.Node) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	recent := c.recent(node.UID)
	if len(recent) <= FightLimit {
		return 0
	}
	return FightPause - c.clock.Since(recent[len(recent)-1])
}

// recent returns the restores that still count.
func (c *Cordons) recent(uid types.UID) []time.Time {
	now := c.clock.Now()
	recent := slices.DeleteFunc(c.restores[uid], func(t time.Time) bool { return now.Sub(t) > FightWindow })
	if len(recent) == 0 {
		delete(c.restores, uid)
		return nil
	}
	c.restores[uid] = recent
	return recent
}

// forget drops what is remembered of a node that is gone.
func (c *Cordons) forget(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, node.UID)
	delete(c.restores, node.UID)
	delete(c.lifted, node.UID)
}

// noteLifted notes that a maintenance that exists to uncordon its nodes has had its effect on a
// node: one that is cordoned again after that is meant to be.
func (c *Cordons) noteLifted(node *corev1.Node, maintenance types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lifted[node.UID] == nil {
		c.lifted[node.UID] = sets.New[types.UID]()
	}
	c.lifted[node.UID].Insert(maintenance)
}

// IsLifted reports whether noteLifted was called for a node and a maintenance.
func (c *Cordons) IsLifted(node *corev1.Node, maintenance types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lifted[node.UID].Has(maintenance)
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
