// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"errors"
	"fmt"
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

// calls counts the requests by verb and resource.
func calls(kube *kubefake.Clientset) map[string]int {
	counts := map[string]int{}
	for _, action := range kube.Actions() {
		counts[action.GetVerb()+" "+action.GetResource().Resource]++
	}
	return counts
}

func TestOwners(t *testing.T) {
	all := sets.New(v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet)
	for name, test := range map[string]struct {
		namespaces, perNamespace int
		builtIn                  sets.Set[string]
		want                     map[string]int
	}{
		"few are read one by one": {
			namespaces: 2, perNamespace: 3, builtIn: all,
			want: map[string]int{
				"get replicasets":               6,
				"get deployments":               6,
				"get daemonsets":                6,
				"list horizontalpodautoscalers": 2,
			},
		},
		"many by namespace": {
			namespaces: 2, perNamespace: 40, builtIn: all,
			want: map[string]int{
				"list replicasets":              2,
				"list deployments":              2,
				"list daemonsets":               2,
				"list horizontalpodautoscalers": 2,
			},
		},
		"owners of many namespaces in one request": {
			namespaces: 20, perNamespace: 4, builtIn: all,
			want: map[string]int{
				"list replicasets":              1,
				"list deployments":              1,
				"list daemonsets":               1,
				"list horizontalpodautoscalers": 1,
			},
		},
		"only for enabled evacuators": {
			namespaces: 1, perNamespace: 1, builtIn: sets.New(v1alpha1.EvacuatorClassDaemonSet),
			want: map[string]int{"get daemonsets": 1},
		},
		"none if no evacuator is enabled": {namespaces: 1, perNamespace: 1, want: map[string]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			// Some owners have no pods.
			objects := []runtime.Object{
				replicaSet("other", "other"), deployment("other", "other"), daemonSet("other", "other"),
			}
			names := NewOwnerNames(test.builtIn)
			for i := range test.namespaces {
				for j := range test.perNamespace {
					namespace, name := fmt.Sprintf("ns-%d", i), fmt.Sprintf("web-%d", j)
					objects = append(objects, replicaSet(namespace, name), deployment(namespace, name),
						daemonSet(namespace, name))
					names.Add(namespace, &metav1.OwnerReference{Kind: "ReplicaSet", Name: name})
					names.Add(namespace, &metav1.OwnerReference{Kind: "DaemonSet", Name: name})
					names.Add(namespace, &metav1.OwnerReference{Kind: "StatefulSet", Name: name})
				}
			}
			kube := kubefake.NewClientset(objects...)
			owners := must.Get(Reader{Client: kube}.Owners(t.Context(), names,
				[]*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-n"}}}))(t)
			if got := calls(kube); !sameCounts(got, test.want) {
				t.Errorf("asked for %v, want %v", got, test.want)
			}
			want := test.namespaces * test.perNamespace
			if test.builtIn.Has(v1alpha1.EvacuatorClassDeployment) {
				rs, _ := owners.ReplicaSet(t.Context(), "ns-0", "web-0")
				d, _ := owners.Deployment(t.Context(), "ns-0", "web-0")
				if len(owners.replicaSets) != want || len(owners.deployments) != want || rs.UID != "rs-web-0" ||
					rs.Annotations != nil ||
					rs.Spec.Template.Spec.NodeName != "" || len(rs.OwnerReferences) != 1 || rs.Spec.Selector == nil ||
					d.UID != "d-web-0" || d.Spec.Selector == nil {
					t.Errorf("got %+v and %+v of %d and %d", rs, d, len(owners.replicaSets), len(owners.deployments))
				}
			}
			if ds, _ := owners.DaemonSet(t.Context(), "ns-0", "web-0"); test.builtIn.Has(
				v1alpha1.EvacuatorClassDaemonSet,
			) != (ds != nil) {
				t.Errorf("got DaemonSet %+v", ds)
			}
			if gone, err := owners.DaemonSet(t.Context(), "other", "gone"); gone != nil || err != nil {
				t.Errorf("one that does not exist: %+v, %v", gone, err)
			}
			if n, _ := owners.Node(t.Context(), "n"); n == nil || n.UID != "uid-n" {
				t.Errorf("node is %+v", n)
			}
		})
	}
}

func sameCounts(a, b map[string]int) bool {
	for key := range a {
		if a[key] != b[key] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestOwnersThatAreGoneOrUnknown(t *testing.T) {
	names := NewOwnerNames(sets.New(v1alpha1.EvacuatorClassDeployment))
	names.Add("ns", &metav1.OwnerReference{Kind: "ReplicaSet", Name: "gone"})
	kube := kubefake.NewClientset()
	owners, err := Reader{Client: kube}.Owners(t.Context(), names, nil)
	is.True(t, err == nil && len(owners.replicaSets) == 0, "got %+v, %v", owners, err)
	kube.PrependReactor("get", "replicasets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no")
	})
	if _, err := (Reader{Client: kube}).Owners(t.Context(), names, nil); err == nil {
		t.Error("an owner that cannot be read is no error")
	}
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
	kube := kubefake.NewClientset(web, replicaSet("ns", "web"), claim("shared", corev1.ReadWriteMany),
		claim("data", corev1.ReadWriteOnce), claim("other", corev1.ReadWriteOnce),
		scaler("ns", "b", "Deployment", "web"), scaler("ns", "a", "Deployment", "web"),
		scaler("ns", "c", "StatefulSet", "web"), scaler("ns", "d", "Deployment", "other"))
	names := NewOwnerNames(sets.New(v1alpha1.EvacuatorClassDeployment))
	names.Add("ns", &metav1.OwnerReference{Kind: "ReplicaSet", Name: "web"})
	owners := must.Get(Reader{Client: kube}.Owners(t.Context(), names, nil))(t)
	c := owners.Surge("ns", "web")
	if c == nil || c.Deployment.Name != "web" || len(c.Autoscalers) != 2 || c.Autoscalers[0].Name != "a" ||
		!slices.Equal(c.OneNodeClaims, []string{"data"}) {
		t.Errorf("got %+v", c)
	}
	is.Equal(t, calls(kube)["get persistentvolumeclaims"], 3, "claims were read")
	if other := owners.Surge("ns", "other"); other != nil {
		t.Errorf("got %+v", other)
	}
	for verb, resource := range map[string]string{"list": "horizontalpodautoscalers", "get": "persistentvolumeclaims"} {
		failing := kubefake.NewClientset(web, replicaSet("ns", "web"))
		failing.PrependReactor(verb, resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no")
		})
		if _, err := (Reader{Client: failing}).Owners(t.Context(), names, nil); err == nil {
			t.Errorf("%s that cannot be read are no error", resource)
		}
	}
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
	kube := kubefake.NewClientset(job)
	owners := must.Get(Reader{Client: kube}.Owners(t.Context(), names, nil))(t)
	if got := owners.Job("ns", "backup"); got == nil || got.Spec.BackoffLimit == nil || *got.Spec.BackoffLimit != 3 || got.Status.Failed != 2 {
		t.Errorf("got %+v", got)
	}
	if got := owners.Job("ns", "gone"); got != nil {
		t.Errorf("got %+v, want none", got)
	}
	is.Equal(t, calls(kube)["get jobs"], 2, "Jobs were read")
}

func TestBudgets(t *testing.T) {
	for name, test := range map[string]struct{ namespaces, lists int }{
		"of few namespaces":  {3, 3},
		"of many namespaces": {20, 1},
		"of none":            {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			namespaces := sets.New[string]()
			for i := range test.namespaces {
				namespace := fmt.Sprintf("ns-%d", i)
				namespaces.Insert(namespace)
				objects = append(objects, &policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a"},
				})
			}
			kube := kubefake.NewClientset(objects...)
			budgets, err := Reader{Client: kube}.Budgets(t.Context(), namespaces)
			if err != nil || len(budgets) != test.namespaces || len(kube.Actions()) != test.lists {
				t.Errorf("%d budgets by %d lists, %v", len(budgets), len(kube.Actions()), err)
			}
		})
	}
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
