/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
