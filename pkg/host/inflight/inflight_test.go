// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package inflight

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestEvictions(t *testing.T) {
	var evictions Evictions
	eviction := Eviction{Evacuation: types.NamespacedName{Namespace: "shop", Name: "evac"}, Pod: "web", UID: "1"}
	evictions.Remove("1")
	evictions.Add(eviction)
	evictions.Add(eviction)
	if got := evictions.List(); !slices.Equal(got, []Eviction{eviction}) || !evictions.Has("1") || evictions.Has("2") {
		t.Errorf("in flight are %v", got)
	}
	evictions.Remove("1")
	if got := evictions.List(); len(got) > 0 || evictions.Has("1") {
		t.Errorf("in flight are still %v", got)
	}
}
