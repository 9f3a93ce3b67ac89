// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

// handOver is the server's write that makes a class the active evacuator.
func (r *registry) handOver(to string) error {
	_, err := r.updateStatus(server, active(to), message(protocol.TurnMessage(to, "test")))
	return err
}

func TestTurnsEndByCompletionOrDeadlineOnly(t *testing.T) {
	const second = "deployment.apps.k8s.io"
	etcd := registrytest.RunEtcd(t)
	refused := []string{"FieldValueInvalid status.activeEvacuatorClass"}
	deadline := func(seconds int32) mod {
		return func(e *maintenance.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To(seconds) }
	}
	stamped := func(at time.Duration) mod {
		return func(e *maintenance.Evacuation) {
			e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(start.Add(at)))
		}
	}
	tests := map[string]struct {
		mod mod
		// meanwhile happens a minute after the first evacuator got its turn.
		meanwhile func(*registry)
		// after is when the turn is to be handed over, counted from when it began.
		after time.Duration
		want  []string
	}{
		"it completed": {meanwhile: func(r *registry) { r.mustUpdateStatus(ann, completed) }, after: time.Minute},
		"it completed and took it back": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, completed); r.mustUpdateStatus(ann, uncompleted) },
			after:     2 * time.Minute, want: refused,
		},
		"it reported, and its deadline is near": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, message("x")) },
			after:     30*time.Minute + 59*time.Second, want: refused,
		},
		"it reported, and its deadline is here": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, message("x")) }, after: 31 * time.Minute,
		},
		"its heartbeat says nothing": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann) }, after: 30 * time.Minute, want: refused,
		},
		"its first heartbeat comes right away": {
			meanwhile: func(r *registry) { r.clock.SetTime(start.Add(time.Millisecond)); r.mustUpdateStatus(ann) },
			after:     30*time.Minute - time.Second, want: refused,
		},
		"it never started, and its time is near": {after: startDeadline - time.Second, want: refused},
		"it never started, and its time is here": {after: startDeadline},
		"its deadline is the shorter one, and near": {
			mod: deadline(120), after: 2*time.Minute - time.Second, want: refused,
		},
		"its deadline is the shorter one, and here": {mod: deadline(120), after: 2 * time.Minute},
		"the server dates its turn back": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(server, stamped(-time.Hour)) }, after: 5 * time.Minute,
			want: refused,
		},
		"the server takes its stamp away": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(server, func(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorSince = nil })
			},
			after: startDeadline - time.Second, want: refused},
		"the server dates activeEvacuatorSince back": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(server, func(e *maintenance.Evacuation) {
					e.Status.ActiveEvacuatorSince = ptr.To(metav1.NewTime(start.Add(-time.Hour)))
				})
			},
			after: startDeadline + time.Minute - time.Second, want: refused},
		"the server makes it active again while it waits": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(server, func(e *maintenance.Evacuation) {
					e.Status.ActiveEvacuatorSince = ptr.To(metav1.NewTime(r.clock.Now()))
				})
			},
			after: startDeadline + time.Minute},
		"a replica whose clock is ahead stamped its report": {
			mod: deadline(60), meanwhile: func(r *registry) {
				r.clock.SetTime(start.Add(3 * time.Minute))
				r.mustUpdateStatus(ann, message("x"))
			}, after: 3 * time.Minute, want: refused},
		"a replica whose clock is behind stamped its report": {
			mod: deadline(60), meanwhile: func(r *registry) {
				r.clock.SetTime(start.Add(-time.Minute))
				r.mustUpdateStatus(ann, message("x"))
			}, after: time.Minute},
		"the Evacuation was withdrawn": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(ann, forbid, completed)
				r.mustUpdate(finalizers())
			},
			after: time.Minute, want: refused},
		"the evacuation is being deleted": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, forbid, completed); r.delete() }, after: time.Minute,
			want: refused,
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			if tt.mod == nil {
				tt.mod = deadline(1800)
			}
			r.mustCreate(tt.mod)
			if err := r.handOver("first.example.com"); err != nil {
				t.Fatal(err)
			}
			if tt.meanwhile != nil {
				r.clock.SetTime(start.Add(time.Minute))
				tt.meanwhile(r)
			}
			r.clock.SetTime(start.Add(tt.after))
			expectCauses(t, r.handOver(second), tt.want...)
		})
	}
}

func uncompleted(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorCompleted = false }

func TestFirstReportAndTheMessageOfTheServer(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	reports := func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(start))
	}
	tests := map[string]struct {
		reports []func(*registry)
		want    string
	}{
		"a first report without a message clears it": {
			reports: []func(*registry){func(r *registry) { r.mustUpdateStatus(ann) }}},
		"a first report of an evacuator in the server does, too": {
			reports: []func(*registry){func(r *registry) { r.mustUpdateStatus(server, reports) }}},
		"a first report with a message replaces it": {
			reports: []func(*registry){func(r *registry) { r.mustUpdateStatus(ann, message("copying")) }},
			want:    "copying",
		},
		"a second report without a message keeps the evacuator's own": {
			reports: []func(*registry){
				func(r *registry) { r.mustUpdateStatus(ann, message("copying")) },
				func(r *registry) { r.clock.SetTime(start.Add(time.Minute)); r.mustUpdateStatus(ann) },
			}, want: "copying"},
		"another write of the server keeps it": {
			reports: []func(*registry){func(r *registry) { r.mustUpdateStatus(server, counter(1)) }},
			want:    "Evacuator first.example.com is active: it is the first evacuator."},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			for _, report := range tt.reports {
				report(r)
			}
			if got := r.mustUpdateStatus(server); got.Status.Message != tt.want {
				t.Errorf("the message is %q, want %q", got.Status.Message, tt.want)
			}
		})
	}
}

func TestOnlyTheServerWritesActiveEvacuatorSince(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	created := r.mustCreate()
	_, err := r.updateStatus(ann, func(e *maintenance.Evacuation) {
		e.Status.ActiveEvacuatorSince = ptr.To(metav1.NewTime(start.Add(time.Hour)))
	})
	expectCauses(t, err, "FieldValueForbidden status.activeEvacuatorSince")
	got := r.mustUpdateStatus(ann, func(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorSince = nil })
	if !got.Status.ActiveEvacuatorSince.Equal(created.Status.ActiveEvacuatorSince) {
		t.Errorf("a client that does not know the field made it %v, want %v",
			got.Status.ActiveEvacuatorSince, created.Status.ActiveEvacuatorSince)
	}
}

func TestFirstMessageNamesTheMaintenance(t *testing.T) {
	const mention = "NodeMaintenance kernel-2026-11 (kernel update)"
	etcd := registrytest.RunEtcd(t)
	tests := map[string]struct {
		user       user.Info
		evacuators []maintenance.Evacuator
		want       string
	}{
		"of a pod that the eviction comes to first": {
			user: server,
			want: "The pod is up for eviction, within its disruption budget if it has one: it has no evacuator. The pod " +
				"leaves for " + mention + ".",
		},
		"of a pod with an evacuator": {
			user: server, evacuators: []maintenance.Evacuator{{EvacuatorClass: "a.example.com", Priority: 1}},
			want: "Evacuator a.example.com is active: it is the first evacuator. The pod leaves for " + mention +
				".",
		},
		"but not if another client says so": {
			user: ann, want: "The pod is up for eviction, within its disruption budget if it has one: it has no evacuator.",
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			got, err := r.create(
				tt.user,
				newEvacuation(withEvacuators(tt.evacuators...), func(e *maintenance.Evacuation) {
					e.Annotations = map[string]string{"maintenance.haulout.dev/leaves-for": mention, "mine": "x"}
				}),
			)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status.Message != tt.want {
				t.Errorf("the message is %q, want %q", got.Status.Message, tt.want)
			}
			if len(got.Annotations) != 1 || got.Annotations["mine"] != "x" {
				t.Errorf("the annotations are %v, want only the client's own", got.Annotations)
			}
		})
	}
}

func TestServerJoinsAnEvacuationThatIsAsLargeAsItMayBe(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	large := newEvacuation(finalizers("evacuation.coordination.k8s.io/instigator_a"))
	large.UID, large.ResourceVersion = podUID, "1234567890"
	large.Generation, large.CreationTimestamp = 1, metav1.NewTime(start)
	for len(size.Validate(registrytest.Scheme, large)) == 0 {
		large.Finalizers = append(large.Finalizers,
			fmt.Sprintf("evacuation.coordination.k8s.io/instigator_%05d", len(large.Finalizers)))
	}
	r.mustCreate(finalizers(large.Finalizers[:len(large.Finalizers)-1]...))
	join := func(e *maintenance.Evacuation) { e.Finalizers = append(e.Finalizers, instigator) }
	_, err := r.update(ann, join)
	expectCauses(t, err, "FieldValueForbidden metadata")
	if _, err := r.update(server, join); err != nil {
		t.Errorf("the server cannot join: %v", err)
	}
	if _, err := r.update(server, func(e *maintenance.Evacuation) {
		e.Finalizers = e.Finalizers[:len(e.Finalizers)-1]
	}); err != nil {
		t.Errorf("the server cannot withdraw: %v", err)
	}
}
