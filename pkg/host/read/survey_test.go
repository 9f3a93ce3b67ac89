// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	kubefake "k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

func replicaSet(namespace, name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("rs-" + name),
			Annotations: map[string]string{"long": "text"},
			OwnerReferences: []metav1.OwnerReference{
				{
					APIVersion: "apps/v1", Kind: "Deployment", Name: name, UID: types.UID("d-" + name),
					Controller: ptr.To(true),
				},
			},
		},
		Spec: appsv1.ReplicaSetSpec{
			Selector: selector, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "x"}},
		},
	}
}

// running returns a ReplicaSet with a replica.
func running(namespace, name string) *appsv1.ReplicaSet {
	set := replicaSet(namespace, name)
	set.Status.Replicas = 1
	return set
}

func deployment(namespace, name string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("d-" + name)},
		Spec:       appsv1.DeploymentSpec{Selector: selector},
	}
}

func daemonSet(namespace, name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("ds-" + name)},
		Spec:       appsv1.DaemonSetSpec{Selector: selector},
	}
}

// calls counts the requests by verb and resource. The caches may begin to watch after their sync.
func calls(kube *kubefake.Clientset) map[string]int {
	counts := map[string]int{}
	for _, action := range kube.Actions() {
		if action.GetVerb() != "watch" {
			counts[action.GetVerb()+" "+action.GetResource().Resource]++
		}
	}
	return counts
}

// newReader returns a Reader with synced caches of a cluster. Its client has recorded no requests.
func newReader(t *testing.T, objects ...runtime.Object) (Reader, *kubefake.Clientset) {
	t.Helper()
	kube := kubefake.NewClientset(objects...)
	caches := must.Get(host.NewCaches(kube, 0, podcache.NewTransform()))(t)
	caches.Start(t.Context())
	must.True(t, caches.WaitForSync(t.Context()), "the caches did not sync")
	kube.ClearActions()
	return Reader{Client: kube, Caches: caches}, kube
}

func TestOwners(t *testing.T) {
	for name, test := range map[string]struct {
		builtIn            sets.Set[string]
		deployment, daemon bool
	}{
		"of all evacuators": {
			builtIn: sets.New(v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet), deployment: true, daemon: true,
		},
		"only for enabled evacuators":     {builtIn: sets.New(v1alpha1.EvacuatorClassDaemonSet), daemon: true},
		"none if no evacuator is enabled": {},
	} {
		t.Run(name, func(t *testing.T) {
			names := NewOwnerNames(test.builtIn)
			for _, kind := range []string{"ReplicaSet", "DaemonSet", "StatefulSet"} {
				for _, name := range []string{"web", "gone"} {
					names.Add("ns", &metav1.OwnerReference{Kind: kind, Name: name})
				}
			}
			r, kube := newReader(t, running("ns", "web"), deployment("ns", "web"), daemonSet("ns", "web"), daemonSet("ns", "without-pods"))
			owners := must.Get(r.Owners(t.Context(), names, []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-n"}}}))(t)
			is.True(t, len(calls(kube)) == 0, "asked for %v, want nothing", calls(kube))
			rs, _ := owners.ReplicaSet(t.Context(), "ns", "web")
			d, _ := owners.Deployment(t.Context(), "ns", "web")
			ds, _ := owners.DaemonSet(t.Context(), "ns", "web")
			is.True(t, (rs != nil && d != nil) == test.deployment && (rs != nil || d != nil) == test.deployment, "got %+v and %+v", rs, d)
			is.True(t, (ds != nil) == test.daemon, "got %+v", ds)
			is.True(t, rs == nil || rs.Spec.Selector != nil && len(rs.OwnerReferences) == 1 && d.Spec.Selector != nil, "got %+v and %+v", rs, d)
			gone, err := owners.DaemonSet(t.Context(), "ns", "gone")
			is.True(t, gone == nil && err == nil, "one that does not exist: %+v, %v", gone, err)
			n, _ := owners.Node(t.Context(), "n")
			is.True(t, n != nil && n.UID == "uid-n", "got %+v", n)
		})
	}
}

// TestSelectorsThatTheCacheLacksAreRead: the cache has no selectors of ReplicaSets without
// replicas.
func TestSelectorsThatTheCacheLacksAreRead(t *testing.T) {
	names := NewOwnerNames(sets.New(v1alpha1.EvacuatorClassDeployment))
	var objects []runtime.Object
	for namespace := range listedByNamespace + 1 {
		for i := range 6 {
			set := replicaSet(fmt.Sprint("ns-", namespace), fmt.Sprint("web-", i))
			names.Add(set.Namespace, &metav1.OwnerReference{Kind: "ReplicaSet", Name: set.Name})
			objects = append(objects, set)
		}
	}
	for count, want := range map[int]map[string]int{
		readByName:   {"get replicasets": readByName},
		12 * 6:       {"list replicasets": 12},
		len(objects): {"list replicasets": 1},
	} {
		r, kube := newReader(t, objects[:count]...)
		owners := must.Get(r.Owners(t.Context(), names, nil))(t)
		is.True(t, maps.Equal(calls(kube), want), "%d ReplicaSets: asked for %v, want %v", count, calls(kube), want)
		set, _ := owners.ReplicaSet(t.Context(), "ns-0", "web-0")
		must.True(t, len(owners.replicaSets) == count && set != nil && set.Spec.Selector != nil, "got %d ReplicaSets, %+v", len(owners.replicaSets), set)
	}
}

func TestOwnersThatCannotBeRead(t *testing.T) {
	names := NewOwnerNames(sets.New(v1alpha1.EvacuatorClassDeployment))
	names.Add("ns", &metav1.OwnerReference{Kind: "ReplicaSet", Name: "web"})
	r, kube := newReader(t, replicaSet("ns", "web"))
	kube.PrependReactor("get", "replicasets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no")
	})
	_, err := r.Owners(t.Context(), names, nil)
	is.True(t, err != nil, "an owner that cannot be read is no error")
}

func TestSurges(t *testing.T) {
	scaler := func(namespace, name, kind, target string) *autoscalingv2.HorizontalPodAutoscaler {
		return &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: "apps/v1", Kind: kind, Name: target,
				},
			},
		}
	}
	claim := func(name string, mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}},
		}
	}
	web := deployment("ns", "web")
	for _, name := range []string{"shared", "data", "gone"} {
		web.Spec.Template.Spec.Volumes = append(web.Spec.Template.Spec.Volumes, corev1.Volume{
			Name: name,
			VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			},
		})
	}
	r, kube := newReader(t, web, running("ns", "web"), claim("shared", corev1.ReadWriteMany),
		claim("data", corev1.ReadWriteOnce), claim("other", corev1.ReadWriteOnce),
		scaler("ns", "b", "Deployment", "web"), scaler("ns", "a", "Deployment", "web"),
		scaler("ns", "c", "StatefulSet", "web"), scaler("ns", "d", "Deployment", "other"))
	names := NewOwnerNames(sets.New(v1alpha1.EvacuatorClassDeployment))
	names.Add("ns", &metav1.OwnerReference{Kind: "ReplicaSet", Name: "web"})
	owners := must.Get(r.Owners(t.Context(), names, nil))(t)
	c := owners.Surge("ns", "web")
	if c == nil || c.Deployment.Name != "web" || len(c.Autoscalers) != 2 || c.Autoscalers[0].Name != "a" ||
		!slices.Equal(c.OneNodeClaims, []string{"data"}) {
		t.Errorf("got %+v", c)
	}
	is.Equal(t, calls(kube)["get persistentvolumeclaims"], 3, "claims were read")
	if other := owners.Surge("ns", "other"); other != nil {
		t.Errorf("got %+v", other)
	}
	failing, kube := newReader(t, web, running("ns", "web"))
	kube.PrependReactor("get", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no")
	})
	_, err := failing.Owners(t.Context(), names, nil)
	is.True(t, err != nil, "claims that cannot be read are no error")
}

// TestJobsAreRead checks that Jobs keep the fields that determine whether they fail permanently.
func TestJobsAreRead(t *testing.T) {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "backup"},
		Spec:       batchv1.JobSpec{BackoffLimit: new(int32(3))}, Status: batchv1.JobStatus{Failed: 2, Succeeded: 1},
	}
	names := NewOwnerNames(nil)
	names.Add("ns", &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "backup"})
	names.Add("ns", &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "gone"})
	names.Add("ns", &metav1.OwnerReference{APIVersion: "batch.example.com/v1", Kind: "Job", Name: "other"})
	r, kube := newReader(t, job)
	owners := must.Get(r.Owners(t.Context(), names, nil))(t)
	if got := owners.Job("ns", "backup"); got == nil || got.Spec.BackoffLimit == nil || *got.Spec.BackoffLimit != 3 || got.Status.Failed != 2 {
		t.Errorf("got %+v", got)
	}
	if got := owners.Job("ns", "gone"); got != nil {
		t.Errorf("got %+v, want none", got)
	}
	is.Equal(t, calls(kube)["get jobs"], 2, "Jobs were read")
}

func TestBudgets(t *testing.T) {
	budget := func(namespace string) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"}}
	}
	r, kube := newReader(t, budget("ns-0"), budget("ns-1"), budget("other"))
	budgets := must.Get(r.Budgets(sets.New("ns-0", "ns-1", "empty")))(t)
	is.True(t, len(budgets) == 2 && len(calls(kube)) == 0, "got %v by %v", budgets, calls(kube))
}

func TestTerminatingNamespaces(t *testing.T) {
	kube := kubefake.NewClientset()
	kube.PrependReactor("list", "namespaces", func(action k8stesting.Action) (bool, runtime.Object, error) {
		wanted, err := fields.ParseSelector(action.(k8stesting.ListActionImpl).ListOptions.FieldSelector)
		list := &corev1.NamespaceList{}
		for name, phase := range map[string]corev1.NamespacePhase{
			"a": corev1.NamespaceActive, "b": corev1.NamespaceTerminating,
		} {
			if wanted.Matches(fields.Set{"status.phase": string(phase)}) {
				list.Items = append(list.Items, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
			}
		}
		return true, list, err
	})
	names, err := Reader{Client: kube}.TerminatingNamespaces(t.Context())
	is.True(t, err == nil && names.Equal(sets.New("b")), "got %v, %v", names, err)
}

func TestAListThatFailsEndsTheOthers(t *testing.T) {
	failure := errors.New("no")
	err := inParallel(t.Context(), 100, func(ctx context.Context, i int) error {
		if i == 0 {
			return failure
		}
		<-ctx.Done()
		return nil
	})
	is.True(t, errors.Is(err, failure), "got %v", err)
}

// TestWhatCannotBeReadIsNotCollected: a claim that cannot be read must not count as a claim for a
// single node.
func TestWhatCannotBeReadIsNotCollected(t *testing.T) {
	failure := errors.New("no")
	found, err := collect(t.Context(), 1, func(context.Context, int) ([]string, error) { return []string{"claim"}, failure })
	is.True(t, errors.Is(err, failure) && len(found) == 0, "got %v, %v, want nothing and the error", found, err)
}
