// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"container/heap"
	"strings"
)

// The order in which pods are evicted: before within a lane, dispatch.go between lanes,
// ownerlane.go for pods without budgets.

// before is the order within a lane: pods that have not been tried go first, in the order of
// precedes, then the others, the one whose last try is the longest ago first.
func (it *item) before(other *item) bool {
	if it.tried != other.tried {
		return it.tried < other.tried
	}
	return it.precedes(other)
}

// precedes orders pods that have not been tried. Pods that are not ready serve no requests and go
// first, then pods that are cheaper to lose, then younger pods.
func (it *item) precedes(other *item) bool {
	if it.notReady != other.notReady {
		return it.notReady
	}
	if it.cost != other.cost {
		return it.cost < other.cost
	}
	if !it.created.Equal(other.created) {
		return it.created.After(other.created)
	}
	return strings.Compare(string(it.UID), string(other.UID)) < 0
}

func (it *item) dueBefore(other *item) bool {
	return it.due.Before(other.due)
}

// itemHeap is a priority queue of items. An item is in one heap at most and knows in which.
type itemHeap struct {
	items []*item
	less  func(a, b *item) bool
}

func (h *itemHeap) first() *item {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

func (h *itemHeap) add(it *item) {
	it.heap = h
	heap.Push((*heapOrder)(h), it)
}

// leaveHeap takes the item out of whatever heap it is in.
func (it *item) leaveHeap() {
	if it.heap != nil {
		heap.Remove((*heapOrder)(it.heap), it.index)
		it.heap = nil
	}
}

// heapOrder keeps the methods that container/heap wants off itemHeap.
type heapOrder itemHeap

func (h *heapOrder) Len() int           { return len(h.items) }
func (h *heapOrder) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }

func (h *heapOrder) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].index, h.items[j].index = i, j
}

func (h *heapOrder) Push(x any) {
	it := x.(*item)
	it.index = len(h.items)
	h.items = append(h.items, it)
}

func (h *heapOrder) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}
