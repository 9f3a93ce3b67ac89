// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package protocol has the rules about evacuators and instigators that the API server, admission
// and the controllers share: the order of evacuators, the annotations of pods, and the names of
// Evacuations.
package protocol

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// MaxEvacuators is the maximum number of evacuators of an Evacuation.
	MaxEvacuators = 16
	// MaxClassLength is the maximum length of a class name: with the prefix "priority_" it must fit
	// into the 63 characters of an annotation's name.
	MaxClassLength = 54
	// MaxPriority is the highest priority of an evacuator.
	MaxPriority int32 = 100000
	// LowestReservedPriority and HighestReservedPriority limit the priorities around the
	// controller's that are reserved for classes under the controller's parent domain.
	LowestReservedPriority int32 = 9900
	// HighestReservedPriority is the highest reserved priority.
	HighestReservedPriority int32 = 10099
)

// CanonicalName returns the only valid name for the Evacuation of a pod, so that a pod has at most
// one Evacuation.
func CanonicalName(podName string, podUID types.UID) string {
	name := string(podUID) + "-" + podName
	if len(name) > validation.DNS1123SubdomainMaxLength {
		name = name[:validation.DNS1123SubdomainMaxLength]
	}
	return strings.TrimRight(name, ".-")
}

// Rank is the sort key of evacuators.
type Rank struct {
	Priority int32
	Class    string
}

// Compare returns a negative number if r acts before other, and a positive one if it acts after
// other. The higher priority acts first. At equal priority, it compares the labels of the domains
// from the top level down, so that a domain precedes its subdomains.
func (r Rank) Compare(other Rank) int {
	if c := cmp.Compare(other.Priority, r.Priority); c != 0 {
		return c
	}
	a, b := strings.Split(r.Class, "."), strings.Split(other.Class, ".")
	slices.Reverse(a)
	slices.Reverse(b)
	return slices.Compare(a, b)
}

// Sort sorts evacuators in the order in which they act.
func Sort(evacuators []v1alpha1.Evacuator) {
	slices.SortStableFunc(evacuators, compare)
}

func compare(a, b v1alpha1.Evacuator) int {
	return Rank{a.Priority, a.EvacuatorClass}.Compare(Rank{b.Priority, b.EvacuatorClass})
}

// SortInternal is Sort for the internal type.
func SortInternal(evacuators []maintenance.Evacuator) {
	slices.SortStableFunc(evacuators, func(a, b maintenance.Evacuator) int {
		return Rank{a.Priority, a.EvacuatorClass}.Compare(Rank{b.Priority, b.EvacuatorClass})
	})
}

// Next returns the class that follows active. It returns the first class if active is empty, and
// the eviction class if active is the last evacuator or is not in the list.
func Next(evacuators []v1alpha1.Evacuator, active string) string {
	sorted := slices.Clone(evacuators)
	Sort(sorted)
	next := 0
	if active != "" {
		i := slices.IndexFunc(sorted, func(e v1alpha1.Evacuator) bool { return e.EvacuatorClass == active })
		if i < 0 {
			return v1alpha1.EvacuatorClassEviction
		}
		next = i + 1
	}
	if next >= len(sorted) {
		return v1alpha1.EvacuatorClassEviction
	}
	return sorted[next].EvacuatorClass
}

// IsReserved reports whether a priority is reserved for classes under the controller's parent
// domain.
func IsReserved(priority int32) bool {
	return priority >= LowestReservedPriority && priority <= HighestReservedPriority
}

// SharesParentDomain reports whether class is under the parent domain of the controller's class. A
// top-level domain does not count as a parent.
func SharesParentDomain(class, controller string) bool {
	if class == controller {
		return true
	}
	_, parent, _ := strings.Cut(controller, ".")
	return strings.Contains(parent, ".") && strings.HasSuffix(class, "."+parent)
}

// CheckRole returns the reason why an evacuator cannot have a role at a priority, or "" if it can.
func CheckRole(priority int32, role v1alpha1.EvacuatorRole) string {
	isController := role == v1alpha1.EvacuatorRoleController
	switch {
	case isController && priority != v1alpha1.ControllerEvacuatorPriority:
		return fmt.Sprintf("the role controller requires priority %d", v1alpha1.ControllerEvacuatorPriority)
	case !isController && priority == v1alpha1.ControllerEvacuatorPriority:
		return fmt.Sprintf("priority %d requires the role controller", priority)
	}
	return ""
}

// CheckClass returns an error with the reason if a class name is invalid.
func CheckClass(class string) error {
	if len(class) > MaxClassLength {
		return fmt.Errorf("class %q is longer than %d characters", class, MaxClassLength)
	}
	if msgs := validation.IsDNS1123Subdomain(class); len(msgs) > 0 {
		return fmt.Errorf("class %q: %s", class, strings.Join(msgs, ", "))
	}
	if class == v1alpha1.EvacuatorClassEviction {
		return fmt.Errorf("class %q is reserved for eviction, which always comes last", class)
	}
	return nil
}

// IsAnnotation reports whether a pod's annotation names an evacuator, according to its prefix.
func IsAnnotation(key string) bool {
	return strings.HasPrefix(key, v1alpha1.AnnotationEvacuatorPrefix)
}

// ParseAnnotation parses an annotation with which a pod names an evacuator: the class in its key,
// and "<priority>" or "<priority>/<role>" in its value. It checks every rule that does not depend
// on other evacuators.
func ParseAnnotation(key, value string) (class string, priority int32, role v1alpha1.EvacuatorRole, err error) {
	if !IsAnnotation(key) {
		return "", 0, "", fmt.Errorf("annotation %q does not start with %q", key, v1alpha1.AnnotationEvacuatorPrefix)
	}
	class = strings.TrimPrefix(key, v1alpha1.AnnotationEvacuatorPrefix)
	if err := CheckClass(class); err != nil {
		return "", 0, "", err
	}
	number, roleName, hasRole := strings.Cut(value, "/")
	parsed, err := strconv.ParseUint(number, 10, 32)
	if err != nil || parsed > uint64(MaxPriority) {
		return "", 0, "", fmt.Errorf("value %q of class %s: must be <priority> or <priority>/<role> with a priority from 0 to %d", value, class, MaxPriority)
	}
	priority, role = int32(parsed), v1alpha1.EvacuatorRole(roleName)
	if hasRole && role != v1alpha1.EvacuatorRoleController {
		return "", 0, "", fmt.Errorf("value %q of class %s: the only supported role is %q", value, class, v1alpha1.EvacuatorRoleController)
	}
	if msg := CheckRole(priority, role); msg != "" {
		return "", 0, "", fmt.Errorf("value %q of class %s: %s", value, class, msg)
	}
	return class, priority, role, nil
}

// shortestStartDeadline and longestStartDeadline limit the value of the annotation of the start
// deadline.
const (
	shortestStartDeadline = time.Second
	longestStartDeadline  = 24 * time.Hour
)

// StartDeadlineOf returns the time that a pod with these annotations gives to the first report of
// its evacuators. It returns 0 if the annotation is not set or, with an error, if its value is
// invalid.
func StartDeadlineOf(annotations map[string]string) (time.Duration, error) {
	value, set := annotations[v1alpha1.AnnotationEvacuatorStartDeadline]
	if !set {
		return 0, nil
	}
	deadline, err := time.ParseDuration(value)
	if err != nil || deadline < shortestStartDeadline || deadline > longestStartDeadline {
		return 0, fmt.Errorf("value %.64q: must be a duration from 1s to 24h, such as \"20m\"", value)
	}
	return deadline, nil
}

// Owners finds the owners of pods. Each method returns nil for an object that does not exist, and
// an error only if the lookup fails.
type Owners interface {
	// ReplicaSet returns a ReplicaSet, with at least its selector and owner references.
	ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error)
	// Deployment returns a Deployment, with at least its selector and the annotation that disables
	// its surge.
	Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error)
	// DaemonSet returns a DaemonSet, with at least its selector.
	DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error)
	// Node returns a node, with at least its conditions.
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// BuiltInClasses are the classes of the evacuators that pods get because of their owner, without an
// annotation: the evacuators of the server, and the node agent, which acts only on its own node.
var BuiltInClasses = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet}

// BuiltIn is the built-in evacuator of a pod, as its owner determines it. The zero value means that
// there is none.
type BuiltIn struct {
	// Class is the class of the evacuator.
	Class string
	// Deployment is the name of the Deployment. It is set for the class of Deployments, and if the
	// Deployment has opted out.
	Deployment string
	// OptedOut is set if there is no class because the pod's Deployment has the annotation that
	// disables its surge.
	OptedOut bool
}

// BuiltInOf returns the built-in evacuator of a pod, if it is enabled. A user who can write a pod
// can set any owner, so the owner must exist with the same UID and must select the pod. A static
// pod has an evacuator only on a node with a node agent. BuiltInOf reads the metadata of the pod
// and the name of its node.
func BuiltInOf(ctx context.Context, pod *corev1.Pod, on sets.Set[string], owners Owners) (BuiltIn, error) {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return BuiltIn{}, nil
	}
	switch kind := GroupKindOf(owner); {
	case kind == AppsKind("ReplicaSet") && on.Has(v1alpha1.EvacuatorClassDeployment):
		deployment, err := deploymentOf(ctx, pod, owner, owners)
		switch {
		case err != nil || deployment == nil:
			return BuiltIn{}, err
		case deployment.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled:
			// The Deployment has opted out, so its evacuator would decline.
			return BuiltIn{Deployment: deployment.Name, OptedOut: true}, nil
		}
		return BuiltIn{Class: v1alpha1.EvacuatorClassDeployment, Deployment: deployment.Name}, nil
	case kind == AppsKind("DaemonSet") && on.Has(v1alpha1.EvacuatorClassDaemonSet):
		daemonSet, err := owners.DaemonSet(ctx, pod.Namespace, owner.Name)
		if err != nil || daemonSet == nil || daemonSet.UID != owner.UID || !selects(daemonSet.Spec.Selector, pod) {
			return BuiltIn{}, err
		}
		return BuiltIn{Class: v1alpha1.EvacuatorClassDaemonSet}, nil
	case kind == corev1.SchemeGroupVersion.WithKind("Node").GroupKind() && on.Has(v1alpha1.EvacuatorClassKubelet):
		if _, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; !isMirror || pod.Spec.NodeName != owner.Name {
			return BuiltIn{}, nil
		}
		node, err := owners.Node(ctx, owner.Name)
		if err != nil || node == nil || node.UID != owner.UID || !HasNodeAgent(node) {
			return BuiltIn{}, err
		}
		return BuiltIn{Class: v1alpha1.EvacuatorClassKubelet}, nil
	}
	return BuiltIn{}, nil
}

// ControllerOf returns the controller of an object if it is of the given kind of the group apps, or
// nil.
func ControllerOf(object metav1.Object, kind string) *metav1.OwnerReference {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == kind && GroupKindOf(owner).Group == appsv1.GroupName {
		return owner
	}
	return nil
}

// GroupKindOf returns the group and the kind of an owner. They are empty if its version is invalid:
// the API server accepts such owner references, although they refer to no object.
func GroupKindOf(owner *metav1.OwnerReference) schema.GroupKind {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return schema.GroupKind{}
	}
	return version.WithKind(owner.Kind).GroupKind()
}

// AppsKind returns a kind of the group apps.
func AppsKind(kind string) schema.GroupKind {
	return appsv1.SchemeGroupVersion.WithKind(kind).GroupKind()
}

// deploymentOf returns the Deployment that owns a pod through the ReplicaSet that is its given
// owner, or nil if there is none.
func deploymentOf(ctx context.Context, pod *corev1.Pod, owner *metav1.OwnerReference, owners Owners) (*appsv1.Deployment, error) {
	replicaSet, err := owners.ReplicaSet(ctx, pod.Namespace, owner.Name)
	if err != nil || replicaSet == nil || replicaSet.UID != owner.UID || !selects(replicaSet.Spec.Selector, pod) {
		return nil, err
	}
	if owner = ControllerOf(replicaSet, "Deployment"); owner == nil {
		return nil, nil
	}
	deployment, err := owners.Deployment(ctx, pod.Namespace, owner.Name)
	if err != nil || deployment == nil || deployment.UID != owner.UID || !selects(deployment.Spec.Selector, pod) {
		return nil, err
	}
	return deployment, nil
}

// selects reports whether a selector matches a pod; an invalid selector matches no pod.
func selects(selector *metav1.LabelSelector, pod *corev1.Pod) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(pod.Labels))
}

// DefaultProgressDeadline is the default of spec.progressDeadlineSeconds.
const DefaultProgressDeadline = 30 * time.Minute

// LongestGrace is the maximum time for which a new leader waits for reports of the active
// evacuators before it makes the next ones active.
const LongestGrace = 5 * time.Minute

// Turn is the state of the active evacuator according to the status of an Evacuation. A turn begins
// when the evacuator becomes active, and ends when the next one does.
type Turn struct {
	// Class is the class of the active evacuator.
	Class string
	// Completed is set if the evacuator has reported that it has done all it can.
	Completed bool
	// Since is the time from which the deadline is counted: the last report or, before the first
	// one, the time at which the evacuator became active. Zero if neither is recorded.
	Since time.Time
	// Reported is set if the evacuator has reported since it became active.
	Reported bool
}

// TurnOf returns the state of the active evacuator in a status.
func TurnOf(status *v1alpha1.EvacuationStatus) Turn {
	return turnOf(status.ActiveEvacuatorClass, status.ActiveEvacuatorSince, status.EvacuationProgressTimestamp, status.ActiveEvacuatorCompleted)
}

// TurnOfInternal does the same as TurnOf for the internal type.
func TurnOfInternal(status *maintenance.EvacuationStatus) Turn {
	return turnOf(status.ActiveEvacuatorClass, status.ActiveEvacuatorSince, status.EvacuationProgressTimestamp, status.ActiveEvacuatorCompleted)
}

func turnOf(class string, since, progress *metav1.Time, completed bool) Turn {
	turn := Turn{Class: class, Completed: completed, Reported: progress != nil}
	for _, t := range []*metav1.Time{since, progress} {
		if t != nil && t.After(turn.Since) {
			turn.Since = t.Time
		}
	}
	return turn
}

// Patience returns the time after which the next evacuator becomes active if the active one sends
// no report. progressDeadlineSeconds is the field of the spec; start limits the time until the
// first report.
func (t Turn) Patience(progressDeadlineSeconds *int32, start time.Duration) time.Duration {
	patience := DefaultProgressDeadline
	if progressDeadlineSeconds != nil {
		patience = time.Duration(*progressDeadlineSeconds) * time.Second
	}
	if t.Reported {
		return patience
	}
	return min(patience, start)
}

// End returns the time at which the next evacuator becomes active if the active one sends no report
// for patience. A leader that started later than that first waits for reports: an evacuator may not
// have been able to report before.
func (t Turn) End(patience time.Duration, leaderSince time.Time) time.Time {
	end, grace := t.Since.Add(patience), leaderSince.Add(min(patience, LongestGrace))
	if end.Before(grace) {
		return grace
	}
	return end
}

// FirstTurn returns the first active class of a new Evacuation with the given evacuators, and the
// reason.
func FirstTurn(evacuators []maintenance.Evacuator) (class, account string) {
	if len(evacuators) == 0 {
		return v1alpha1.EvacuatorClassEviction, "it has no evacuator"
	}
	sorted := slices.Clone(evacuators)
	SortInternal(sorted)
	return sorted[0].EvacuatorClass, "it is the first evacuator"
}

// TurnMessage returns the status message at a change of the active evacuator: the new class, and
// the reason. Programs must not parse this message.
func TurnMessage(class, account string) string {
	if class == v1alpha1.EvacuatorClassEviction {
		return "The pod waits for its eviction: " + account + "."
	}
	return "Evacuator " + class + " is active: " + account + "."
}

// ClientTurnMessage is TurnMessage for eviction if only another client wants to evict the pod: the
// server does not evict it.
func ClientTurnMessage(account string) string {
	return "The pod waits for the next eviction by a client: " + account + "."
}

// Timestamp returns a time with the precision that the API stores.
func Timestamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}
