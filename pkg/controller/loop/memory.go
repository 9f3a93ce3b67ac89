// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"maps"
	"slices"
	"sync"
)

// Memory is a map of values that a controller may forget at any time. The zero value is empty. It
// is safe for concurrent use.
type Memory[K comparable, V any] struct {
	mu    sync.Mutex
	byKey map[K]V
}

// Get returns the value of a key, and whether there is one.
func (m *Memory[K, V]) Get(key K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, known := m.byKey[key]
	return value, known
}

// Set stores a value.
func (m *Memory[K, V]) Set(key K, value V) {
	m.Change(key, func(V, bool) (V, bool) { return value, true })
}

// Forget drops the value of a key.
func (m *Memory[K, V]) Forget(key K) {
	var none V
	m.Change(key, func(V, bool) (V, bool) { return none, false })
}

// Change replaces the value of a key with next, or drops the value if keep is false. It calls
// change under the lock, so change must not use the memory.
func (m *Memory[K, V]) Change(key K, change func(value V, known bool) (next V, keep bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, known := m.byKey[key]
	next, keep := change(value, known)
	if !keep {
		delete(m.byKey, key)
		return
	}
	if m.byKey == nil {
		m.byKey = map[K]V{}
	}
	m.byKey[key] = next
}

// Keys returns the keys, in no order.
func (m *Memory[K, V]) Keys() []K {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.byKey))
}

// Len returns the number of keys.
func (m *Memory[K, V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.byKey)
}

// Sweep drops the values for which isOld returns true.
func (m *Memory[K, V]) Sweep(isOld func(V) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.byKey, func(_ K, value V) bool { return isOld(value) })
}
