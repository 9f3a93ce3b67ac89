// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import "testing"

func TestMemory(t *testing.T) {
	var memory Memory[string, int]
	want := func(step, key string, value int, known bool) {
		t.Helper()
		if got, is := memory.Get(key); got != value || is != known {
			t.Errorf("%s: got %d, %t for %s, want %d, %t", step, got, is, key, value, known)
		}
	}
	want("empty", "a", 0, false)
	memory.Forget("a")
	memory.Sweep(func(int) bool { return true })
	memory.Set("a", 1)
	memory.Set("b", 2)
	want("set", "a", 1, true)
	increment := func(value int, known bool) (int, bool) { return value + 1, known }
	memory.Change("a", increment)
	memory.Change("c", increment)
	want("changed", "a", 2, true)
	want("unknown and not kept", "c", 0, false)
	memory.Set("a", 3)
	memory.Sweep(func(value int) bool { return value < 3 })
	want("not old", "a", 3, true)
	want("old", "b", 0, false)
	memory.Forget("a")
	want("forgotten", "a", 0, false)
}
