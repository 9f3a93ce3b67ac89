// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// world has a handler and two fake clusters.
type world struct {
	*testing.T
	*Handler
	host *fake.Clientset
	own  *versionedfake.Clientset
	sent *events.FakeRecorder
}

func newWorld(t *testing.T, pod *corev1.Pod, evacuations ...runtime.Object) *world {
	t.Helper()
	w := &world{T: t, host: fake.NewClientset(pod), own: versionedfake.NewClientset(evacuations...), sent: events.NewFakeRecorder(10)}
	w.Handler = &Handler{
		Host: w.host, Evacuations: w.own.MaintenanceV1alpha1(), Recorder: w.sent, TTL: ttl, Clock: clocktesting.NewFakePassiveClock(now),
		NoLeader: func() string { return "" }, LeaderSince: func() time.Time { return now.Add(-time.Hour) },
	}
	return w
}

// The bodies are those that clients send: kubectl, with a dry run in its options;
// cluster-autoscaler with the older version; Karpenter without metadata.
const (
	ofKubectl       = `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"db-1","namespace":"blue"},"deleteOptions":{}}`
	ofKubectlDryRun = `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"db-1","namespace":"blue"},"deleteOptions":{"dryRun":["All"]}}`
	ofAutoscaler    = `{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"db-1","namespace":"blue"},"deleteOptions":{"gracePeriodSeconds":30}}`
	ofKarpenter     = `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{},"deleteOptions":{"preconditions":{"uid":"` + string(podUID) + `"}}}`
)

// post sends the review of an eviction, as kube-apiserver does.
func (w *world) post(eviction string) *admissionv1.AdmissionResponse {
	w.Helper()
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "review-1", Name: "db-1", Namespace: "blue", Object: runtime.RawExtension{Raw: []byte(eviction)},
			Kind: metav1.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, UserInfo: authenticationv1.UserInfo{Username: "alice"},
		},
	}
	recorder := w.request(http.MethodPost, Path, must.Get(json.Marshal(review))(w))
	must.True(w, recorder.Code == http.StatusOK, "got %d: %s", recorder.Code, recorder.Body)
	var answer admissionv1.AdmissionReview
	must.Do(w, json.Unmarshal(recorder.Body.Bytes(), &answer))
	must.True(w, answer.Kind == "AdmissionReview" && answer.Request == nil && answer.Response != nil && answer.Response.UID == "review-1", "got %+v", answer)
	return answer.Response
}

func (w *world) request(method, path string, body []byte) *httptest.ResponseRecorder {
	w.Helper()
	recorder := httptest.NewRecorder()
	api := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusTeapot) })
	w.Before(api).ServeHTTP(recorder, httptest.NewRequestWithContext(w.Context(), method, path, bytes.NewReader(body)))
	return recorder
}

// TestEvictionsOfClients sends the evictions of clients of a pod with an evacuator.
func TestEvictionsOfClients(t *testing.T) {
	for client, test := range map[string]struct {
		body   string
		dryRun bool
	}{
		"kubectl": {ofKubectl, false}, "kubectl --dry-run=server": {ofKubectlDryRun, true},
		"cluster-autoscaler": {ofAutoscaler, false}, "Karpenter": {ofKarpenter, false},
	} {
		t.Run(client, func(t *testing.T) {
			w := newWorld(t, newPod(annotated))
			got := w.post(test.body)
			stored := must.Get(w.own.MaintenanceV1alpha1().Evacuations("blue").List(t.Context(), metav1.ListOptions{}))(t)
			is.Equal(t, got.Allowed, test.dryRun, "allowed")
			if test.dryRun {
				is.Equal(t, len(stored.Items), 0, "Evacuations")
				is.Equal(t, got.AuditAnnotations[auditDecision], "dry_run")
				is.True(t, len(got.Warnings) == 1, "got the warnings %q", got.Warnings)
				return
			}
			must.True(t, len(stored.Items) == 1, "got %d Evacuations", len(stored.Items))
			made := stored.Items[0]
			is.Equal(t, made.Name, name)
			is.Slices(t, made.Finalizers, []string{raw}, "finalizers")
			is.Equal(t, made.Spec.PodRef, v1alpha1.PodReference{Name: "db-1", UID: podUID}, "pod")
			is.Equal(t, made.Annotations[v1alpha1.AnnotationEvictionAsked], "2026-11-27T01:00:00Z", "time")
			is.Equal(t, made.Annotations[v1alpha1.AnnotationLeavesFor], "an eviction by alice", "reason")
			is.Equal(t, got.AuditAnnotations[auditDecision], "made")
			is.Equal(t, got.AuditAnnotations[auditEvacuation], name)
			is.Equal(t, got.Result.Code, int32(http.StatusTooManyRequests), "code")
			is.Equal(t, got.Result.Details.RetryAfterSeconds, int32(0), "client-go would repeat the request silently: seconds")
			is.True(t, len(got.Result.Details.Causes) == 1 && got.Result.Details.Causes[0] == metav1.StatusCause{Type: "Evacuation", Message: name},
				"got the causes %+v", got.Result.Details.Causes)
			is.True(t, strings.HasPrefix(got.Result.Message, "Eviction triggered evacuation of pod"), "got %q", got.Result.Message)
			if event := <-w.sent.Events; !strings.Contains(event, EventBecameEvacuation) || !strings.Contains(event, "alice") {
				t.Errorf("got event %q", event)
			}
			w.post(test.body)
			is.Equal(t, len(w.sent.Events), 0, "events about the second eviction")
		})
	}
}

// TestPodsOfDeployments have no annotation.
func TestPodsOfDeployments(t *testing.T) {
	class := func(class string, err error) func(context.Context, *corev1.Pod) (protocol.BuiltIn, error) {
		return func(context.Context, *corev1.Pod) (protocol.BuiltIn, error) {
			return protocol.BuiltIn{Class: class}, err
		}
	}
	for name, test := range map[string]struct {
		builtIn func(context.Context, *corev1.Pod) (protocol.BuiltIn, error)
		want    answer
	}{
		"only annotations count":   {nil, answerNotAware},
		"of a Deployment":          {class(v1alpha1.EvacuatorClassDeployment, nil), answerMade},
		"of another owner":         {class("", nil), answerNotAware},
		"the owner cannot be read": {class("", errors.New("timed out")), answerError},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newPod())
			w.BuiltIn = test.builtIn
			got := w.post(ofKubectl)
			is.Equal(t, answer(got.AuditAnnotations[auditDecision]), test.want)
			is.Equal(t, got.Allowed, test.want != answerMade, "allowed")
		})
	}
	t.Run("a malformed annotation names no evacuator", func(t *testing.T) {
		w := newWorld(t, newPod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.AnnotationEvacuatorPrefix + classA: "first"}
		}))
		is.Equal(t, w.post(ofKubectl).AuditAnnotations[auditDecision], "not_aware")
	})
}

// TestFailures checks that evictions are allowed, with a warning, if the server cannot decide.
func TestFailures(t *testing.T) {
	broken := errors.New("the storage does not answer")
	fail := func(client *clienttesting.Fake, verb, resource string, err error) {
		client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	terminating := apierrors.NewForbidden(v1alpha1.Resource("evacuations"), name, errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		breaks func(*world)
		want   answer
	}{
		"the pod cannot be read":           {func(w *world) { fail(&w.host.Fake, "get", "pods", broken) }, answerError},
		"the Evacuation cannot be read":    {func(w *world) { fail(&w.own.Fake, "get", "evacuations", broken) }, answerError},
		"the Evacuation cannot be created": {func(w *world) { fail(&w.own.Fake, "create", "evacuations", broken) }, answerError},
		"it exists, but cannot be read yet": {func(w *world) {
			fail(&w.own.Fake, "create", "evacuations", apierrors.NewAlreadyExists(v1alpha1.Resource("evacuations"), "x"))
		}, answerError},
		"the namespace is being deleted": {func(w *world) { fail(&w.own.Fake, "create", "evacuations", terminating) }, answerPassed},
		"no replica leads":               {func(w *world) { w.NoLeader = func() string { return "none leads" } }, answerNoLeader},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newPod(annotated))
			test.breaks(w)
			got := w.post(ofKubectl)
			is.True(t, got.Allowed, "the eviction is refused: %+v", got.Result)
			is.Equal(t, answer(got.AuditAnnotations[auditDecision]), test.want)
			is.Equal(t, len(got.Warnings) == 1, test.want != answerPassed, "warned")
			is.Equal(t, len(w.sent.Events), 0, "events")
		})
	}
}

// TestStorageWithoutWrites: an eviction is allowed if none could be recorded for longer than the
// TTL, and neither can this one.
func TestStorageWithoutWrites(t *testing.T) {
	for name, test := range map[string]struct {
		asked      time.Duration
		isFull     bool
		modify     func(*v1alpha1.Evacuation)
		isAllowed  bool
		wantAnswer answer
	}{
		"an eviction was recorded in time": {asked: 10 * time.Minute, isFull: true, wantAnswer: answerUnderWay},
		"none was recorded for too long":   {asked: 17 * time.Minute, isFull: true, isAllowed: true, wantAnswer: answerError},
		"this one can be recorded":         {asked: 17 * time.Minute, wantAnswer: answerUnderWay},
		"an evacuator has to finish":       {asked: 17 * time.Minute, isFull: true, modify: forbid, wantAnswer: answerUnderWay},
	} {
		t.Run(name, func(t *testing.T) {
			mods := []func(*v1alpha1.Evacuation){active(classA), askedAgo(test.asked)}
			if test.modify != nil {
				mods = append(mods, test.modify)
			}
			w := newWorld(t, newPod(annotated), newEvacuation(mods...))
			if test.isFull {
				w.own.PrependReactor("patch", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded"))
				})
			}
			got := w.post(ofKubectl)
			is.Equal(t, got.Allowed, test.isAllowed, "allowed")
			is.Equal(t, answer(got.AuditAnnotations[auditDecision]), test.wantAnswer)
		})
	}
}

// TestStatusWithoutWrites: an eviction is allowed if the leader could not make the next evacuator
// active, whatever requests the evacuation, and not while a new leader waits for reports.
func TestStatusWithoutWrites(t *testing.T) {
	for name, test := range map[string]struct {
		leaderSince time.Duration
		isAllowed   bool
		wantAnswer  answer
	}{
		"the leader has had the time": {leaderSince: time.Hour, isAllowed: true, wantAnswer: answerError},
		"a new leader has started":    {leaderSince: time.Minute, wantAnswer: answerUnderWay},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newPod(annotated), newEvacuation(withFinalizers(ofNodes), func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorSince = ago(time.Hour) }))
			w.LeaderSince = func() time.Time { return now.Add(-test.leaderSince) }
			got := w.post(ofKubectl)
			is.Equal(t, got.Allowed, test.isAllowed, "allowed")
			is.Equal(t, len(got.Warnings) == 1, test.isAllowed, "warned")
			is.Equal(t, answer(got.AuditAnnotations[auditDecision]), test.wantAnswer)
		})
	}
}

// TestEvictionsInALoop sends more evictions than are reviewed, of pods that do not exist, and then
// those of others.
func TestEvictionsInALoop(t *testing.T) {
	type sender struct{ user, namespace string }
	for name, test := range map[string]struct {
		loop  func(i int) sender
		other sender
		says  string
		burst int
	}{
		"in a namespace": {
			loop:  func(i int) sender { return sender{fmt.Sprint("mallory-", i), "red"} },
			other: sender{"alice", "blue"}, says: `namespace "red" has more than 100 evictions per second`, burst: namespaceBurst,
		},
		"of a user": {
			loop:  func(int) sender { return sender{"mallory", "red"} },
			other: sender{"alice", "red"}, says: `user "mallory" has more than 50 evictions per second`, burst: userBurst,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newPod(annotated))
			review := func(by sender) *admissionv1.AdmissionResponse {
				return w.Review(t.Context(), &admissionv1.AdmissionRequest{
					Namespace: by.namespace, Name: "none", Object: runtime.RawExtension{Raw: []byte(ofKubectl)},
					Kind: metav1.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}, UserInfo: authenticationv1.UserInfo{Username: by.user},
				})
			}
			for i := range test.burst + 10 {
				review(test.loop(i))
			}
			is.Equal(t, len(w.host.Actions()), test.burst, "requests to the host cluster")
			got := review(test.loop(0))
			is.True(t, got.Allowed && len(got.Warnings) == 1 && strings.HasSuffix(got.Warnings[0], test.says), "got %+v, want it allowed with a warning", got)
			is.Equal(t, answer(got.AuditAnnotations[auditDecision]), answerLimited)
			is.Equal(t, answer(review(test.other).AuditAnnotations[auditDecision]), answerPassed, "the eviction of another user")

			w.Clock.(*clocktesting.FakePassiveClock).SetTime(now.Add(time.Second))
			is.Equal(t, answer(review(test.loop(0)).AuditAnnotations[auditDecision]), answerPassed, "a second later")
		})
	}
}

// TestConcurrentEvictions lets another request make the Evacuation between the two steps.
func TestConcurrentEvictions(t *testing.T) {
	w := newWorld(t, newPod(annotated))
	w.own.PrependReactor("create", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
		must.Do(t, w.own.Tracker().Add(newEvacuation()))
		return true, nil, apierrors.NewAlreadyExists(v1alpha1.Resource("evacuations"), name)
	})
	got := w.post(ofKubectl)
	is.True(t, !got.Allowed, "the eviction is allowed: %q", got.Warnings)
	is.Equal(t, got.AuditAnnotations[auditDecision], "under_way")
}

// TestTheTimeIsRecorded sends a second eviction of a pod.
func TestTheTimeIsRecorded(t *testing.T) {
	for name, test := range map[string]struct {
		evacuation *v1alpha1.Evacuation
		body       string
		want       time.Duration
	}{
		"after a moment":         {newEvacuation(), ofKubectl, 2 * time.Minute},
		"after a third":          {newEvacuation(askedAgo(6 * time.Minute)), ofKubectl, 0},
		"not of a dry run":       {newEvacuation(askedAgo(6 * time.Minute)), ofKubectlDryRun, 6 * time.Minute},
		"while a budget is shut": {newEvacuation(askedAgo(6*time.Minute), active(v1alpha1.EvacuatorClassEviction)), ofKubectl, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newPod(annotated), test.evacuation)
			w.post(test.body)
			stored := must.Get(w.own.MaintenanceV1alpha1().Evacuations("blue").Get(t.Context(), test.evacuation.Name, metav1.GetOptions{}))(t)
			is.Equal(t, now.Sub(protocol.EvictionAsked(stored)), test.want, "age of the record")
		})
	}
}

func TestRequests(t *testing.T) {
	w := newWorld(t, newPod(annotated))
	for name, test := range map[string]struct {
		method, path, body string
		want               int
	}{
		"another path is of the API":       {http.MethodGet, "/apis/maintenance.haulout.dev/v1alpha1/evacuations", "", http.StatusTeapot},
		"another method":                   {http.MethodGet, Path, "", http.StatusMethodNotAllowed},
		"no body":                          {http.MethodPost, Path, "", http.StatusBadRequest},
		"no request":                       {http.MethodPost, Path, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		"another version":                  {http.MethodPost, Path, `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"a"}}`, http.StatusBadRequest},
		"a body of more than a mebibyte":   {http.MethodPost, Path, `{"kind":"` + strings.Repeat("a", 1<<20) + `"}`, http.StatusRequestEntityTooLarge},
		"an eviction without name or body": {http.MethodPost, Path, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"a"}}`, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.request(test.method, test.path, []byte(test.body))
			is.Equal(t, got.Code, test.want, "code of "+got.Body.String()+":")
		})
	}
}
