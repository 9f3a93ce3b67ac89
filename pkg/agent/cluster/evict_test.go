// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
)

// podOn returns a running pod of the node.
func podOn(name string, modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: nodeName}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range modify {
		f(pod)
	}
	return pod
}

func ownedBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "o", UID: "owner", Controller: ptr.To(true)}}
	}
}

func TestPods(t *testing.T) {
	annotated := func(key string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Annotations = map[string]string{key: "1"} }
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want shutdown.Pod
	}{
		"a pod with a priority":      {podOn("a", func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To[int32](7) }), shutdown.Pod{Priority: 7}},
		"a pod of a ReplicaSet":      {podOn("a", ownedBy("apps/v1", "ReplicaSet")), shutdown.Pod{Owner: "owner"}},
		"a pod of a DaemonSet":       {podOn("a", ownedBy("apps/v1", "DaemonSet")), shutdown.Pod{Owner: "owner", Stays: true}},
		"a pod of another API group": {podOn("a", ownedBy("apps.example.com/v1", "DaemonSet")), shutdown.Pod{Owner: "owner"}},
		"a mirror pod":               {podOn("a", annotated(corev1.MirrorPodAnnotationKey)), shutdown.Pod{Stays: true}},
		"a pod that leaves":          {podOn("a", func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), shutdown.Pod{Leaving: true}},
		"with an evacuator":          {podOn("a", annotated(v1alpha1.AnnotationEvacuatorPrefix+"x.example.com")), shutdown.Pod{Evacuator: true}},
	} {
		t.Run(name, func(t *testing.T) {
			finished := podOn("finished", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })
			elsewhere := podOn("elsewhere", func(pod *corev1.Pod) { pod.Spec.NodeName = "worker-2" })
			got, err := newAPI(t, tt.pod, finished, elsewhere).client.Pods(t.Context())
			tt.want.Namespace, tt.want.Name, tt.want.UID = "default", "a", "a"
			if diff := cmp.Diff([]shutdown.Pod{tt.want}, got); diff != "" || err != nil {
				t.Errorf("Pods() (-want +got): %v\n%s", err, diff)
			}
		})
	}
}

func TestEvict(t *testing.T) {
	for name, tt := range map[string]struct {
		pod        *corev1.Pod
		answer     *metav1.Status
		refused    bool
		retryAfter time.Duration
	}{
		"accepted": {pod: podOn("a")},
		"the budget allows no disruption": {pod: podOn("a"), refused: true, retryAfter: 10 * time.Second, answer: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Details: &metav1.StatusDetails{RetryAfterSeconds: 10},
		}},
		"several budgets: a failure in a 201": {pod: podOn("a"), refused: true, answer: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "This pod has more than one PodDisruptionBudget",
		}},
		"another pod of this name":      {pod: podOn("a", func(pod *corev1.Pod) { pod.UID = "b" }), refused: true},
		"a pod that is gone: Forbidden": {pod: podOn("b"), refused: true},
		"on another node":               {pod: podOn("a", func(pod *corev1.Pod) { pod.Spec.NodeName = "worker-2" }), refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.pod)
			a.evict = func(*policyv1.Eviction) *metav1.Status { return tt.answer }
			err := a.client.Evict(t.Context(), shutdown.Pod{Namespace: "default", Name: "a", UID: "a"})
			var refused *shutdown.RefusedEvictionError
			if errors.As(err, &refused) != tt.refused || (err != nil) != tt.refused {
				t.Fatalf("Evict() = %v, refused should be %t", err, tt.refused)
			}
			if tt.refused && refused.RetryAfter != tt.retryAfter {
				t.Errorf("again after %s, want %s", refused.RetryAfter, tt.retryAfter)
			}
			if got := a.count("POST /api/v1/namespaces/default/pods/a/eviction"); got != 1 {
				t.Errorf("%d requests, want one", got)
			}
			if !tt.refused && a.evictions[0].Annotations["maintenance.haulout.dev/evict-now"] != "haulout-node-agent" {
				t.Errorf("the eviction has no mark: %+v", a.evictions[0].ObjectMeta)
			}
		})
	}
}

// A pod that was deleted while the machine boots needs no report: the API responds that the pod
// does not exist.
func TestReportOfADeletedPod(t *testing.T) {
	a := newAPI(t)
	reported, err := a.client.ReportKilled(t.Context(), []state.KilledPod{{Namespace: "default", Name: "a", UID: "a"}}, time.Now())
	if len(reported) != 1 || err != nil {
		t.Errorf("ReportKilled() = %v, %v, want the pod", reported, err)
	}
}

// The pod is deleted between the list and the patch.
func TestReportOfAPodThatIsBeingDeleted(t *testing.T) {
	a := newAPI(t, podOn("a"))
	a.before = func(verb, _ string) *apierrors.StatusError {
		if verb == http.MethodPatch {
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.objects, "/api/v1/namespaces/default/pods/a")
		}
		return nil
	}
	reported, err := a.client.ReportKilled(t.Context(), []state.KilledPod{{Namespace: "default", Name: "a", UID: "a"}}, time.Now().Add(-time.Hour))
	if len(reported) != 1 || err != nil {
		t.Errorf("ReportKilled() = %v, %v, want the pod", reported, err)
	}
}

func TestCordonAndUncordon(t *testing.T) {
	const key, held = "maintenance.haulout.dev/cordoned-by-agent", "maintenance.haulout.dev/cordoned-by"
	node := func(cordoned bool, annotations map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Annotations: annotations}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	}
	cordon := func(a *api) error {
		_, err := a.client.Cordon(a.t.Context(), boot)
		return err
	}
	uncordon := func(a *api) error { return a.client.Uncordon(a.t.Context()) }
	for name, tt := range map[string]struct {
		node       *corev1.Node
		do         func(a *api) error
		cordoned   bool
		annotation string
	}{
		"a schedulable node is cordoned":                  {node(false, nil), cordon, true, boot},
		"a node that a user has cordoned stays unchanged": {node(true, nil), cordon, true, ""},
		"a cordon of an earlier boot is taken over":       {node(true, map[string]string{key: otherBoot}), cordon, true, boot},
		"its own cordon is undone":                        {node(true, map[string]string{key: boot}), uncordon, false, ""},
		"the cordon of a user stays":                      {node(true, nil), uncordon, true, ""},
		"the cordon of an earlier boot is undone, too":    {node(true, map[string]string{key: otherBoot}), uncordon, false, ""},
		"the server holds the node":                       {node(true, map[string]string{key: boot, held: `{"maintenances":{"m":"1"}}`}), uncordon, true, ""},
		"a user has undone the cordon":                    {node(false, map[string]string{key: boot}), uncordon, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.node)
			for range 2 {
				must.Do(t, tt.do(a))
			}
			if got := a.node(); got.Spec.Unschedulable != tt.cordoned || got.Annotations[key] != tt.annotation {
				t.Errorf("cordoned %t, annotation %q, want %t, %q", got.Spec.Unschedulable, got.Annotations[key], tt.cordoned, tt.annotation)
			}
		})
	}
}
