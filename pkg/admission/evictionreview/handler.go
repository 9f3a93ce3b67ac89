// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evictionreview answers the admission reviews of evictions: the eviction of a pod with
// evacuators becomes an Evacuation, and its client is told to ask again. kube-apiserver sends the
// reviews to a path of this API, through its own aggregator. They never block an eviction for good:
// what the server cannot decide is allowed, and only the budgets of the pod decide.
package evictionreview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
)

const (
	// Path is the path of the reviews. kube-apiserver authenticates there as itself, and no role
	// grants another user the right to create evictionreviews.
	Path = "/apis/" + v1alpha1.GroupName + "/v1alpha1/evictionreviews"

	// timeout limits a review. It is shorter than the timeout of the webhook, so that the server
	// answers with a warning before kube-apiserver gives up.
	timeout = 2 * time.Second
	// maxBody is the maximum size of a review, in bytes.
	maxBody = 1 << 20
)

// Handler answers reviews. All fields except BuiltIn are required.
type Handler struct {
	// Host reads pods.
	Host kubernetes.Interface
	// Evacuations is a client of this server, with its own identity.
	Evacuations maintenanceclient.EvacuationsGetter
	// BuiltIn returns the built-in evacuator of a pod. Nil means that only pods whose annotations
	// name an evacuator are evacuated.
	BuiltIn func(context.Context, *corev1.Pod) (protocol.BuiltIn, error)
	// NoLeader returns the reason why no replica acts on Evacuations, or why this replica has not
	// known for some seconds whether one does; otherwise it returns "".
	NoLeader func() string
	// LeaderSince returns the time since which this replica knows that the present leader leads.
	LeaderSince func() time.Time
	// Recorder writes events into the host cluster.
	Recorder events.EventRecorder
	// TTL is how long an Evacuation is kept after the last eviction of its pod.
	TTL time.Duration
	// Clock is the clock.
	Clock clock.PassiveClock

	limits limits
}

// Before returns a handler that answers the reviews, and passes other requests on. It belongs
// behind the filters of the server, which authenticate and authorize the request.
func (h *Handler) Before(api http.Handler) http.Handler {
	registerMetrics()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == Path {
			h.serve(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
		return
	}
	var review admissionv1.AdmissionReview
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&review)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		http.Error(w, fmt.Sprintf("the body is larger than %d bytes", maxBody), http.StatusRequestEntityTooLarge)
		return
	case err != nil || review.Request == nil || review.APIVersion != admissionv1.SchemeGroupVersion.String():
		http.Error(w, "the body must be an AdmissionReview of "+admissionv1.SchemeGroupVersion.String()+" with a request", http.StatusBadRequest)
		return
	}
	review.Response = h.Review(r.Context(), review.Request)
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	// If this fails, kube-apiserver allows the eviction.
	_ = json.NewEncoder(w).Encode(&review)
}

// Review returns the response to a request, and makes the Evacuation if the response needs one.
func (h *Handler) Review(ctx context.Context, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := h.Clock.Now()
	e := evictionOf(request)
	s, d := h.review(ctx, e)
	reviewsTotal.WithLabelValues(string(d.answer)).Inc()
	reviewDuration.Observe(h.Clock.Since(began).Seconds())
	klog.FromContext(ctx).V(4).Info("Eviction reviewed", "pod", klog.KRef(e.namespace, e.name), "answer", d.answer, "user", e.user)
	return responseOf(request.UID, s, d)
}

// review decides about an eviction and does what the decision needs. If another request made the
// Evacuation in the meantime, it decides again.
func (h *Handler) review(ctx context.Context, e eviction) (situation, decision) {
	var s situation
	var err error
	if why := h.limits.exceededBy(e, h.Clock); why != "" {
		return s, decision{
			answer: answerLimited, allowed: true,
			message: fmt.Sprintf("pod %q is evicted without its evacuators: %s", e.namespace+"/"+e.name, why),
		}
	}
	for range 2 {
		if s, err = h.gather(ctx, e); err != nil {
			break
		}
		d := decide(s)
		if d.noteTime {
			err = h.noteTime(ctx, s.evacuation)
		}
		if err != nil && !d.allowed && s.isPastTTL() && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			break
		}
		if !d.create {
			return s, d
		}
		if s.evacuation, err = h.create(ctx, s); err == nil {
			d.message = underWayMessage(s)
			return s, d
		}
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return s, decision{answer: answerPassed, allowed: true}
		}
		if !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	klog.FromContext(ctx).Error(err, "Cannot review an eviction, which is allowed", "pod", klog.KRef(e.namespace, e.name))
	return s, decision{
		answer: answerError, allowed: true,
		message: fmt.Sprintf("pod %q is evicted without its evacuators: %s", e.namespace+"/"+e.name, protocol.OneLine(err.Error(), maxMessage/2)),
	}
}

// create makes the Evacuation of a pod for an eviction.
func (h *Handler) create(ctx context.Context, s situation) (*v1alpha1.Evacuation, error) {
	by := "an eviction by " + protocol.UserName(s.eviction.user)
	evacuation, err := h.Evacuations.Evacuations(s.pod.Namespace).Create(ctx, &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  s.pod.Namespace,
			Name:       protocol.CanonicalName(s.pod.Name, s.pod.UID),
			Finalizers: []string{v1alpha1.FinalizerInstigatorRawEviction},
			Annotations: map[string]string{
				v1alpha1.AnnotationEvictionAsked: s.now.UTC().Format(time.RFC3339),
				v1alpha1.AnnotationLeavesFor:     by,
			},
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: s.pod.Name, UID: s.pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create the Evacuation: %w", err)
	}
	h.sendBecame(evacuation, by)
	return evacuation, nil
}

// noteTime records that the pod of an Evacuation was asked for. A failure only matters if it
// happens for the whole TTL.
func (h *Handler) noteTime(ctx context.Context, evacuation *v1alpha1.Evacuation) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         evacuation.UID,
		"annotations": map[string]string{v1alpha1.AnnotationEvictionAsked: h.Clock.Now().UTC().Format(time.RFC3339)},
	}})
	if err == nil {
		_, err = h.Evacuations.Evacuations(evacuation.Namespace).Patch(ctx, evacuation.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot record that an eviction asked for a pod again", "evacuation", klog.KObj(evacuation))
		return fmt.Errorf("record the eviction in the Evacuation: %w", err)
	}
	return nil
}
