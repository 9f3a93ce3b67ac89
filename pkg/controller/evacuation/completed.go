// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// minCompleted is how many complete Evacuations of a namespace are kept for the TTL, however few
// pods the namespace has.
const minCompleted = 100

// completed tracks the complete Evacuations of each namespace. A pod costs nothing once it is
// deleted, so a quota of pods does not bound how many Evacuations outlive theirs: as many are kept
// as the namespace has pods, and at least minCompleted. The oldest ones are surplus.
type completed struct {
	mu         sync.Mutex
	namespaces map[string]*completedIn
}

type completedIn struct {
	// pods is the number of pods of the namespace.
	pods int
	// kept are the complete Evacuations that are not surplus, the oldest first, and known are all
	// complete ones.
	kept  []completion
	known map[string]completion
	// surplus are the names of the Evacuations to be deleted before the end of their TTL.
	surplus sets.Set[string]
}

type completion struct {
	name string
	at   time.Time
}

func (c completion) compare(other completion) int {
	return cmp.Or(c.at.Compare(other.at), cmp.Compare(c.name, other.name))
}

func newCompleted() *completed {
	return &completed{namespaces: map[string]*completedIn{}}
}

// change changes what is known of a namespace, and forgets a namespace without anything.
func (c *completed) change(namespace string, change func(*completedIn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.namespaces[namespace]
	if in == nil {
		in = &completedIn{known: map[string]completion{}, surplus: sets.New[string]()}
		c.namespaces[namespace] = in
	}
	if change(in); in.pods == 0 && len(in.known) == 0 {
		delete(c.namespaces, namespace)
	}
}

// addPods takes in that a namespace has n pods more.
func (c *completed) addPods(namespace string, n int) {
	c.change(namespace, func(in *completedIn) { in.pods += n })
}

// set takes in an Evacuation as it is.
func (c *completed) set(evacuation *v1alpha1.Evacuation) {
	if !protocol.IsComplete(evacuation) {
		return
	}
	is := completion{evacuation.Name, meta.FindStatusCondition(evacuation.Status.Conditions, v1alpha1.ConditionComplete).LastTransitionTime.Time}
	c.change(evacuation.Namespace, func(in *completedIn) {
		if _, known := in.known[is.name]; known {
			return
		}
		in.known[is.name] = is
		at, _ := slices.BinarySearchFunc(in.kept, is, completion.compare)
		in.kept = slices.Insert(in.kept, at, is)
	})
}

// remove takes in that an Evacuation is gone.
func (c *completed) remove(key types.NamespacedName) {
	c.change(key.Namespace, func(in *completedIn) {
		was, known := in.known[key.Name]
		if !known {
			return
		}
		delete(in.known, key.Name)
		in.surplus.Delete(key.Name)
		if at, kept := slices.BinarySearchFunc(in.kept, was, completion.compare); kept {
			in.kept = slices.Delete(in.kept, at, at+1)
		}
	})
}

// overflow makes the oldest complete Evacuations of a namespace surplus if there are too many, and
// returns those that have become so.
func (c *completed) overflow(namespace string) []types.NamespacedName {
	var over []types.NamespacedName
	c.change(namespace, func(in *completedIn) {
		excess := max(0, len(in.kept)-max(minCompleted, in.pods))
		for _, oldest := range in.kept[:excess] {
			in.surplus.Insert(oldest.name)
			over = append(over, types.NamespacedName{Namespace: namespace, Name: oldest.name})
		}
		in.kept = slices.Delete(in.kept, 0, excess)
	})
	return over
}

// isSurplus reports whether an Evacuation is to be deleted before the end of its TTL.
func (c *completed) isSurplus(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.namespaces[key.Namespace]
	return in != nil && in.surplus.Has(key.Name)
}
