// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

const own, kubelet = ServiceName, "kubelet"

func TestPlace(t *testing.T) {
	for name, test := range map[string]struct {
		order, want []string
		unchanged   bool
	}{
		"an empty list":                    {want: []string{own}},
		"before the kubelet":               {order: []string{"a", kubelet, "b"}, want: []string{"a", own, kubelet, "b"}},
		"before the kubelet in capitals":   {order: []string{"KUBELET"}, want: []string{own, "KUBELET"}},
		"before the first of two":          {order: []string{"a", kubelet, "Kubelet"}, want: []string{"a", own, kubelet, "Kubelet"}},
		"at the end without the kubelet":   {order: []string{"a", "b"}, want: []string{"a", "b", own}},
		"already there":                    {order: []string{own, "a", kubelet}, want: []string{own, "a", kubelet}, unchanged: true},
		"already there in capitals":        {order: []string{"HAULOUT-NODE-AGENT", kubelet}, want: []string{"HAULOUT-NODE-AGENT", kubelet}, unchanged: true},
		"already there, without a kubelet": {order: []string{own, "a"}, want: []string{own, "a"}, unchanged: true},
		"after the kubelet":                {order: []string{"a", kubelet, "b", own}, want: []string{"a", own, kubelet, "b"}},
		"twice":                            {order: []string{own, "a", kubelet, "Haulout-Node-Agent"}, want: []string{"a", own, kubelet}},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(test.order)
			got, changed := place(test.order, own, kubelet)
			if !slices.Equal(got, test.want) || changed == test.unchanged {
				t.Errorf("got %q (changed %v), want %q (changed %v)", got, changed, test.want, !test.unchanged)
			}
			if !slices.Equal(test.order, before) {
				t.Errorf("the list was changed in place to %q", test.order)
			}
			if again, changed := place(got, own, kubelet); changed || !slices.Equal(again, got) {
				t.Errorf("a second time gives %q", again)
			}
		})
	}
}

// fakeOrder is a fake orderValue: it keeps the registry value PreshutdownOrder in memory.
type fakeOrder struct {
	order []string
	found bool
}

func (f *fakeOrder) get() (order []string, found bool, err error) {
	return slices.Clone(f.order), f.found, nil
}

func (f *fakeOrder) set(order []string) error {
	f.order, f.found = slices.Clone(order), true
	return nil
}

func (f *fakeOrder) remove() error {
	f.order, f.found = nil, false
	return nil
}

func TestOrderIsRestored(t *testing.T) {
	for name, test := range map[string]struct {
		before fakeOrder
		// change simulates the changes of other programs while the agent is installed.
		change func(*fakeOrder)
		// again is set if the agent checks the value once more after the change.
		again bool
		want  fakeOrder
	}{
		"a list":                              {before: fakeOrder{order: []string{"a", "Kubelet"}, found: true}, want: fakeOrder{order: []string{"a", "Kubelet"}, found: true}},
		"a list without the agent":            {before: fakeOrder{order: []string{"a"}, found: true}, want: fakeOrder{order: []string{"a"}, found: true}},
		"an empty list":                       {before: fakeOrder{found: true}, want: fakeOrder{found: true}},
		"no value":                            {},
		"a record of an earlier installation": {before: fakeOrder{order: []string{"a", own}, found: true}, want: fakeOrder{order: []string{"a"}, found: true}},
		"other services are added": {
			before: fakeOrder{order: []string{"a"}, found: true},
			change: func(f *fakeOrder) { f.order = append(f.order, "b") },
			want:   fakeOrder{order: []string{"a", "b"}, found: true},
		},
		"other services are added where no value was": {
			change: func(f *fakeOrder) { f.order = append(f.order, kubelet) },
			want:   fakeOrder{order: []string{kubelet}, found: true},
		},
		"the kubelet puts itself before the agent": {
			change: func(f *fakeOrder) { f.order = append([]string{kubelet}, f.order...) }, again: true,
			want: fakeOrder{order: []string{kubelet}, found: true},
		},
		"the value is removed":                        {before: fakeOrder{order: []string{"a"}, found: true}, change: func(f *fakeOrder) { _ = f.remove() }},
		"the value is removed and the agent is added": {change: func(f *fakeOrder) { _ = f.remove() }, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, value := t.TempDir(), &fakeOrder{order: slices.Clone(test.before.order), found: test.before.found}
			placeOnce := func() {
				t.Helper()
				must.Do(t, placeInOrder(value, dir, own, kubelet))
				if indexOf(value.order, own) < 0 {
					t.Fatalf("the agent is not in %q", value.order)
				}
			}
			placeOnce()
			if test.change != nil {
				test.change(value)
			}
			if test.again {
				placeOnce()
			}
			must.Do(t, restoreOrder(value, dir, own))
			if !slices.Equal(value.order, test.want.order) || value.found != test.want.found {
				t.Errorf("the value is %q (exists: %v), want %q (exists: %v)", value.order, value.found, test.want.order, test.want.found)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
				t.Errorf("files are left: %v (error %v)", files, err)
			}
		})
	}
}

func TestDamagedRecordIsNotOverwritten(t *testing.T) {
	dir, value := t.TempDir(), &fakeOrder{order: []string{"a"}, found: true}
	path := filepath.Join(dir, orderFile)
	must.Do(t, os.WriteFile(path, []byte("{"), 0o600))
	if err := placeInOrder(value, dir, own, kubelet); err == nil {
		t.Error("a record that cannot be read is no error")
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "{" || !slices.Equal(value.order, []string{"a"}) {
		t.Errorf("the record is %q (error %v) and the value %q", content, err, value.order)
	}
}
