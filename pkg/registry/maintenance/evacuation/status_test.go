// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestStatusIsNotCreatedByUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	_, _, err := r.Status.Update(request(t, server, "update", "status", name), name,
		rest.DefaultUpdatedObjectInfo(newEvacuation()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc,
		true, &metav1.UpdateOptions{})
	is.True(t, apierrors.IsNotFound(err), "got %v, want that it is not found", err)
}

func TestStatusWritesKeepMetadataAndSpec(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	created := r.mustCreate()
	got := r.mustUpdateStatus(server, active("first.example.com"), finalizers(), func(e *maintenance.Evacuation) {
		e.Labels = map[string]string{"app": "other"}
		e.Spec.NodeName = "node-8"
	})
	is.True(t, equality.Semantic.DeepEqual(got.Spec, created.Spec), "the spec became %+v", got.Spec)
	if !slices.Equal(got.Finalizers, created.Finalizers) || got.Labels["app"] != "web" {
		t.Errorf("the metadata became %+v", got.ObjectMeta)
	}
	is.True(t, got.Status.ActiveEvacuatorClass == "first.example.com", "the status was not written: %+v", got.Status)
}

func TestStatusTransitions(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	first, last := active("first.example.com"), active("last.example.com")
	mods := func(m ...mod) []mod { return m }
	evicted := mods(first, completed, active("deployment.apps.k8s.io"), completed, last, completed, active(eviction))
	tests := map[string]struct {
		// before are earlier writes of the server.
		before []mod
		user   user.Info
		mods   []mod
		want   []string
	}{
		"the first evacuator reports immediately": {user: ann, mods: mods(message("x"), forbid)},
		"the server makes the next evacuator active": {
			before: mods(first, completed), user: server, mods: mods(active("deployment.apps.k8s.io")),
		},
		"the server skips an evacuator": {
			before: mods(first, completed), user: server, mods: mods(last),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
		"the counter is negative": {
			before: mods(first), user: server, mods: mods(counter(-1)),
			want: []string{"FieldValueInvalid status.failedEvictionCounter"},
		},
		"an unknown policy": {
			before: mods(first), user: server,
			mods: mods(func(e *maintenance.Evacuation) { e.Status.EvacuationCancellationPolicy = "Perhaps" }),
			want: []string{"FieldValueNotSupported status.evacuationCancellationPolicy"},
		},
		"a message of 1025 bytes": {
			before: mods(first), user: ann, mods: mods(message(strings.Repeat("x", 1025))),
			want: []string{"FieldValueTooLong status.message"},
		},
		"a condition twice": {
			before: mods(first), user: server, mods: mods(condition("Blocked", "A"), condition("Blocked", "A")),
			want: []string{"FieldValueDuplicate status.conditions[2]"},
		},
		"the server completes it": {before: mods(first), user: server, mods: mods(condition("Complete", "PodDeleted"))},
		"an evacuator reports on a complete Evacuation": {
			before: mods(first, condition("Complete", "PodDeleted")), user: ann, mods: mods(message("x")),
			want: []string{"FieldValueForbidden status"},
		},
		"an evacuator sends a heartbeat for a complete Evacuation": {before: mods(first, condition("Complete", "PodDeleted")), user: ann},
		"a user reports for eviction": {
			before: evicted, user: ann, mods: mods(message("x")), want: []string{"FieldValueForbidden status"},
		},
		"an evacuator counts evictions": {
			before: mods(first), user: ann, mods: mods(counter(1)),
			want: []string{"FieldValueForbidden status.failedEvictionCounter"},
		},
		"the server completes the Evacuation and changes the active evacuator in one write": {
			before: mods(first), user: server, mods: mods(completed, active("deployment.apps.k8s.io")),
			want: []string{"FieldValueInvalid status.activeEvacuatorClass"},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			for _, m := range tt.before {
				r.mustUpdateStatus(server, m)
			}
			_, err := r.updateStatus(tt.user, tt.mods...)
			expectCauses(t, err, tt.want...)
		})
	}
}

func counter(n int32) mod {
	return func(e *maintenance.Evacuation) { e.Status.FailedEvictionCounter = n }
}

func TestWithoutEvacuatorsEvictionStarts(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate(withEvacuators())
	if got := r.mustUpdateStatus(server, active(eviction)); got.Status.ActiveEvacuatorClass != eviction {
		t.Errorf("the active class is %q", got.Status.ActiveEvacuatorClass)
	}
}

func TestProgressTimestamp(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(start.Truncate(time.Second).Add(d))) }
	expect := func(what string, got *maintenance.Evacuation, want *metav1.Time) {
		t.Helper()
		if !got.Status.EvacuationProgressTimestamp.Equal(want) {
			t.Errorf("%s: the progress timestamp is %v, want %v", what, got.Status.EvacuationProgressTimestamp, want)
		}
	}
	theirs := func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(start.Add(240 * time.Hour)))
	}
	expect("the first evacuator has not reported yet", r.mustUpdateStatus(server, active("first.example.com")), nil)

	r.clock.SetTime(start.Add(time.Minute))
	expect("it writes without a change", r.mustUpdateStatus(ann), at(time.Minute))
	before := r.mustUpdateStatus(ann)
	if again := r.mustUpdateStatus(ann); again.ResourceVersion != before.ResourceVersion {
		t.Errorf("two reports in a second are two writes")
	}

	r.clock.SetTime(start.Add(2 * time.Minute))
	expect("it sends a time of its own", r.mustUpdateStatus(ann, theirs), at(2*time.Minute))
	expect("it removes the time",
		r.mustUpdateStatus(ann, func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil }),
		at(2*time.Minute))

	r.clock.SetTime(start.Add(3 * time.Minute))
	expect("the server writes the message", r.mustUpdateStatus(server, message("x")), at(2*time.Minute))
	expect("the server's own evacuator reports", r.mustUpdateStatus(server, func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = at(3 * time.Minute)
	}), at(3*time.Minute))

	r.clock.SetTime(start.Add(4 * time.Minute))
	expect("the server's own evacuator makes up a time", r.mustUpdateStatus(server, theirs), at(4*time.Minute))
	r.clock.SetTime(start.Add(5 * time.Minute))
	expect(
		"the server removes the time",
		r.mustUpdateStatus(server, message("y"),
			func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil }),
		at(4*time.Minute),
	)

	r.mustUpdateStatus(ann, completed)
	r.clock.SetTime(start.Add(6 * time.Minute))
	got := r.mustUpdateStatus(server, active("deployment.apps.k8s.io"), theirs)
	expect("the next one becomes active", got, nil)
	if !got.Status.ActiveEvacuatorSince.Equal(at(6 * time.Minute)) {
		t.Errorf("the next one is active since %v, want %v", got.Status.ActiveEvacuatorSince, at(6*time.Minute))
	}

	r.mustUpdateStatus(server, condition("Complete", "PodDeleted"))
	r.clock.SetTime(start.Add(7 * time.Minute))
	expect("it reports on a complete one", r.mustUpdateStatus(ann), nil)
}

func TestHandOverClearsWhatTheLastOneReported(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	r.mustUpdateStatus(server, active("first.example.com"))
	r.mustUpdateStatus(ann, forbid, func(e *maintenance.Evacuation) {
		e.Status.ActiveEvacuatorCompleted = true
		e.Status.ExpectedEvacuationFinishTime = ptr.To(metav1.NewTime(start))
	})
	got := r.mustUpdateStatus(server, active("deployment.apps.k8s.io"), message("first.example.com said it completed"))
	want := maintenance.EvacuationStatus{
		ActiveEvacuatorClass:         "deployment.apps.k8s.io",
		ActiveEvacuatorSince:         ptr.To(metav1.NewTime(start).Rfc3339Copy()),
		EvacuationCancellationPolicy: maintenance.EvacuationCancellationPolicyAllow,
		Message:                      "first.example.com said it completed",
		Conditions:                   notObserved(),
	}
	is.True(t, equality.Semantic.DeepEqual(got.Status, want), "the status is %+v, want %+v", got.Status, want)
}

func TestForbidAndTheInstigators(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	tests := map[string]struct {
		prepare func(*registry)
		want    []string
	}{
		"in time": {prepare: func(*registry) {}},
		"after the last instigator is gone": {
			prepare: func(r *registry) { _, _ = r.update(ann, finalizers()) },
			want:    []string{"FieldValueInvalid status.evacuationCancellationPolicy"},
		},
		"after the deletion": {
			prepare: func(r *registry) { r.delete() },
			want:    []string{"FieldValueInvalid status.evacuationCancellationPolicy"},
		},
		"before both": {
			prepare: func(r *registry) {
				r.mustUpdateStatus(ann, forbid)
				r.delete()
				_, _ = r.update(ann, finalizers(metav1.FinalizerOrphanDependents))
			},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			r.mustUpdateStatus(server, active("first.example.com"))
			tt.prepare(r)
			_, err := r.updateStatus(ann, forbid)
			expectCauses(t, err, tt.want...)
		})
	}
}

// handOver makes a class the active evacuator, as the server does.
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
		// meanwhile is a function that is called a minute after the first evacuator became active.
		meanwhile func(*registry)
		// after is the time for which the first evacuator has been active before the server tries
		// to make the next one active.
		after time.Duration
		want  []string
	}{
		"it completed": {meanwhile: func(r *registry) { r.mustUpdateStatus(ann, completed) }, after: time.Minute},
		"it completed and reverted the completion": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, completed); r.mustUpdateStatus(ann, uncompleted) },
			after:     2 * time.Minute, want: refused,
		},
		"it reported, and its deadline is near": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, message("x")) },
			after:     30*time.Minute + 59*time.Second, want: refused,
		},
		"it reported, and its deadline has passed": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, message("x")) }, after: 31 * time.Minute,
		},
		"its heartbeat has no message": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann) }, after: 30 * time.Minute, want: refused,
		},
		"it sends its first heartbeat immediately": {
			meanwhile: func(r *registry) { r.clock.SetTime(start.Add(time.Millisecond)); r.mustUpdateStatus(ann) },
			after:     30*time.Minute - time.Second, want: refused,
		},
		"it never started, and its time is near": {after: startDeadline - time.Second, want: refused},
		"it never started, and its time is over": {after: startDeadline},
		"its deadline is the shorter one, and near": {
			mod: deadline(120), after: 2*time.Minute - time.Second, want: refused,
		},
		"its deadline is the shorter one, and has passed": {mod: deadline(120), after: 2 * time.Minute},
		"the server sets activeEvacuatorSince to an earlier time with the class": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(server, stamped(-time.Hour)) }, after: 5 * time.Minute,
			want: refused,
		},
		"the server removes its timestamp": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(server, func(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorSince = nil })
			},
			after: startDeadline - time.Second, want: refused},
		"the server sets activeEvacuatorSince to an earlier time": {
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
			must.Do(t, r.handOver("first.example.com"))
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
		"of a pod without an evacuator": {
			user: server,
			want: "The pod waits for its eviction: it has no evacuator. The pod " +
				"leaves for " + mention + ".",
		},
		"of a pod with an evacuator": {
			user: server, evacuators: []maintenance.Evacuator{{EvacuatorClass: "a.example.com", Priority: 1}},
			want: "Evacuator a.example.com is active: it is the first evacuator. The pod leaves for " + mention + ".",
		},
		"without a maintenance that another client names": {
			user: ann, want: "The pod waits for its eviction: it has no evacuator.",
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			got := must.Get(r.create(
				tt.user,
				newEvacuation(withEvacuators(tt.evacuators...), func(e *maintenance.Evacuation) {
					e.Annotations = map[string]string{"maintenance.haulout.dev/leaves-for": mention, "mine": "x"}
				}),
			))(t)
			is.Equal(t, got.Status.Message, tt.want, "the message")
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
