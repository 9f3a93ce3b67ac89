// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

const uid = types.UID("f5823a89-e03f-4752-b013-445643b8c7a0")

func TestCanonicalName(t *testing.T) {
	long := strings.Repeat("a", 215) + ".-" + strings.Repeat("b", 36)
	tests := map[string]struct {
		pod  string
		want string
	}{
		"the UID precedes the name": {
			pod:  "muffin-orders-6b59d9cb88-ks7wb",
			want: "f5823a89-e03f-4752-b013-445643b8c7a0-muffin-orders-6b59d9cb88-ks7wb",
		},
		"a name with dots is kept": {
			pod: "etcd-node.example.com", want: "f5823a89-e03f-4752-b013-445643b8c7a0-etcd-node.example.com",
		},
		"a long name is cut, and characters that are invalid at the end are trimmed": {
			pod: long, want: string(uid) + "-" + strings.Repeat("a", 215),
		},
		"the longest name that fits is unchanged": {
			pod: strings.Repeat("a", 216), want: string(uid) + "-" + strings.Repeat("a", 216),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := CanonicalName(tt.pod, uid)
			is.Equal(t, got, tt.want)
			if msgs := validation.IsDNS1123Subdomain(got); len(msgs) > 0 {
				t.Errorf("%q is no valid name: %v", got, msgs)
			}
		})
	}
}

func TestSort(t *testing.T) {
	evacuators := []v1alpha1.Evacuator{
		{EvacuatorClass: "b.example.com", Priority: 5},
		{EvacuatorClass: "z.a.example.com", Priority: 5},
		{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: v1alpha1.EvacuatorRoleController},
		{EvacuatorClass: "a.example.com", Priority: 5},
		{EvacuatorClass: "first.example.org", Priority: 100000},
		{EvacuatorClass: "example.com", Priority: 5},
		{EvacuatorClass: "last.example.com", Priority: 0},
	}
	Sort(evacuators)
	var got []string
	for i, e := range evacuators {
		got = append(got, e.EvacuatorClass)
		if i > 0 && compare(evacuators[i-1], e) >= 0 {
			t.Errorf("%s is not less than %s", evacuators[i-1].EvacuatorClass, e.EvacuatorClass)
		}
		if compare(e, e) != 0 {
			t.Errorf("%s is less than itself", e.EvacuatorClass)
		}
	}
	want := []string{
		"first.example.org", "deployment.apps.k8s.io", "example.com", "a.example.com", "z.a.example.com",
		"b.example.com", "last.example.com",
	}
	is.Slices(t, got, want)
}

func TestNext(t *testing.T) {
	evacuators := []v1alpha1.Evacuator{
		{EvacuatorClass: "low.example.com", Priority: 1}, {EvacuatorClass: "high.example.com", Priority: 2},
	}
	tests := map[string]struct {
		evacuators []v1alpha1.Evacuator
		active     string
		want       string
	}{
		"the highest priority starts":        {evacuators, "", "high.example.com"},
		"the next lower one follows":         {evacuators, "high.example.com", "low.example.com"},
		"eviction follows the last":          {evacuators, "low.example.com", "eviction.maintenance.haulout.dev"},
		"eviction is final":                  {evacuators, "eviction.maintenance.haulout.dev", "eviction.maintenance.haulout.dev"},
		"without evacuators eviction starts": {nil, "", "eviction.maintenance.haulout.dev"},
		"an active class that is not listed has ended": {
			evacuators, "gone.example.com", "eviction.maintenance.haulout.dev",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, Next(tt.evacuators, tt.active), tt.want)
		})
	}
	is.True(t, evacuators[0].EvacuatorClass == "low.example.com", "Next changed its argument")
}

func TestSharesParentDomain(t *testing.T) {
	tests := map[string]struct {
		class, controller string
		want              bool
	}{
		"a sibling does":                            {"before.apps.k8s.io", "deployment.apps.k8s.io", true},
		"the controller itself does":                {"deployment.apps.k8s.io", "deployment.apps.k8s.io", true},
		"a subdomain does":                          {"x.before.apps.k8s.io", "deployment.apps.k8s.io", true},
		"another domain does not":                   {"before.example.com", "deployment.apps.k8s.io", false},
		"a domain with a similar end does not":      {"before.myapps.k8s.io", "deployment.apps.k8s.io", false},
		"the parent domain's parent does not":       {"before.k8s.io", "deployment.apps.k8s.io", false},
		"a top-level domain is not shared":          {"other.com", "example.com", false},
		"a single label has no parent to be shared": {"b", "a", false},
		"without a controller, no domain does":      {"before.apps.k8s.io", "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, SharesParentDomain(tt.class, tt.controller), tt.want)
		})
	}
}

func TestParseAnnotation(t *testing.T) {
	const prefix = "evacuation.coordination.k8s.io/priority_"
	class54 := strings.Repeat("a", 42) + ".example.com"
	tests := map[string]struct {
		key, value string
		want       *v1alpha1.Evacuator
	}{
		"a priority": {
			key: prefix + "a.example.com", value: "50",
			want: &v1alpha1.Evacuator{EvacuatorClass: "a.example.com", Priority: 50},
		},
		"the lowest priority": {
			key: prefix + "a.example.com", value: "0",
			want: &v1alpha1.Evacuator{EvacuatorClass: "a.example.com"},
		},
		"the highest priority": {
			key: prefix + "a.example.com", value: "100000",
			want: &v1alpha1.Evacuator{EvacuatorClass: "a.example.com", Priority: 100000},
		},
		"the longest class": {
			key: prefix + class54, value: "1",
			want: &v1alpha1.Evacuator{EvacuatorClass: class54, Priority: 1},
		},
		"the controller": {
			key: prefix + "a.example.com", value: "10000/controller",
			want: &v1alpha1.Evacuator{EvacuatorClass: "a.example.com", Priority: 10000, Role: "controller"},
		},
		"the controller without its role":   {key: prefix + "a.example.com", value: "10000"},
		"the role at another priority":      {key: prefix + "a.example.com", value: "9999/controller"},
		"an unknown role":                   {key: prefix + "a.example.com", value: "10000/boss"},
		"an empty role":                     {key: prefix + "a.example.com", value: "50/"},
		"two roles":                         {key: prefix + "a.example.com", value: "10000/controller/controller"},
		"a negative priority":               {key: prefix + "a.example.com", value: "-1"},
		"a signed priority":                 {key: prefix + "a.example.com", value: "+1"},
		"a priority that is too high":       {key: prefix + "a.example.com", value: "100001"},
		"a priority that overflows":         {key: prefix + "a.example.com", value: "99999999999999999999"},
		"a word":                            {key: prefix + "a.example.com", value: "high"},
		"an empty value":                    {key: prefix + "a.example.com"},
		"spaces":                            {key: prefix + "a.example.com", value: " 50"},
		"no class":                          {key: prefix, value: "50"},
		"a class that is not a domain":      {key: prefix + "A_b", value: "50"},
		"the class of eviction":             {key: prefix + "eviction.maintenance.haulout.dev", value: "50"},
		"a class that is too long":          {key: prefix + "a" + class54, value: "50"},
		"an annotation of another kind":     {key: "example.com/priority_a.example.com", value: "50"},
		"an annotation without the keyword": {key: "evacuation.coordination.k8s.io/a.example.com", value: "50"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			class, priority, role, err := ParseAnnotation(tt.key, tt.value)
			got := v1alpha1.Evacuator{EvacuatorClass: class, Priority: priority, Role: role}
			switch {
			case tt.want == nil && err == nil:
				t.Errorf("accepted as %v", got)
			case tt.want == nil && got != v1alpha1.Evacuator{}:
				t.Errorf("returned %v beside the error", got)
			case tt.want != nil && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != nil && got != *tt.want:
				t.Errorf("got %v, want %v", got, *tt.want)
			}
		})
	}
}

func TestOnlyMaintenancesDecide(t *testing.T) {
	const maintenance, raw, manual = v1alpha1.FinalizerInstigatorNodeMaintenance, v1alpha1.FinalizerInstigatorRawEviction, FinalizerInstigatorManual
	for name, tt := range map[string]struct {
		finalizers []string
		want       bool
	}{
		"maintenances":                               {[]string{maintenance, "example.com/other"}, true},
		"maintenances, beside an eviction":           {[]string{raw, maintenance}, true},
		"an eviction":                                {[]string{raw}, false},
		"a user beside maintenances":                 {[]string{maintenance, manual}, false},
		"a user beside maintenances and an eviction": {[]string{raw, maintenance, manual}, false},
		"no instigator":                              {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, OnlyMaintenancesDecide(&metav1.ObjectMeta{Finalizers: tt.finalizers}), tt.want)
		})
	}
}

func TestInstigators(t *testing.T) {
	tests := map[string]struct {
		finalizers []string
		want       []string
	}{
		"ours": {
			finalizers: []string{"evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io"},
			want:       []string{"nodemaintenance.k8s.io"},
		},
		"several, in order": {
			finalizers: []string{
				"evacuation.coordination.k8s.io/instigator_b", "x/y", "evacuation.coordination.k8s.io/instigator_a",
			},
			want: []string{"b", "a"},
		},
		"another finalizer is not an instigator":          {finalizers: []string{"foregroundDeletion", "example.com/instigator_a"}},
		"a finalizer without a name is not an instigator": {finalizers: []string{"evacuation.coordination.k8s.io/instigator_"}},
		"no finalizers, no instigators":                   {},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			is.Slices(t, Instigators(tt.finalizers), tt.want)
			if got := HasInstigator(tt.finalizers); got != (len(tt.want) > 0) {
				t.Errorf("HasInstigator: got %v", got)
			}
		})
	}
}
