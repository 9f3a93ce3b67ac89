// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
)

// evacuators has the evacuator classes. The user of a class may report only for that class.
var evacuators = []v1alpha1.Evacuator{
	{EvacuatorClass: "fast.movers.example.com", Priority: 30000},
	{
		EvacuatorClass: "controller.apps.example.com", Priority: v1alpha1.ControllerEvacuatorPriority,
		Role: v1alpha1.EvacuatorRoleController,
	},
	{EvacuatorClass: "slow.movers.example.com", Priority: 500},
}

// instigators has the users that request Evacuations.
var instigators = []string{"x.faults.haulout.dev", "y.faults.haulout.dev", "z.faults.haulout.dev"}

// action is a request of an actor. Its weight is its share of all requests.
type action struct {
	name   string
	weight int
	do     func(*storm, context.Context, *rand.Rand) error
}

var actions = []action{
	{"make a pod", 20, (*storm).makePod},
	{"ask for an evacuation", 14, (*storm).ask},
	{"ask for it under another name", 1, (*storm).askTwice},
	{"join those who ask", 4, (*storm).join},
	{"withdraw", 5, (*storm).withdraw},
	{"withdraw in another's name", 2, (*storm).withdrawAnother},
	{"delete an evacuation", 3, (*storm).deleteEvacuation},
	{"report", 16, (*storm).report},
	{"report too late", 5, (*storm).reportLate},
	{"write what is the server's", 5, (*storm).usurp},
	{"delete a pod", 3, (*storm).deletePod},
	{"evict a pod", 5, (*storm).evictPod},
	{"end a pod", 1, (*storm).endPod},
	{"hold a pod", 1, (*storm).holdPod},
	{"let pods go", 2, (*storm).letPodsGo},
	{"change a budget", 7, (*storm).changeBudget},
	{"begin or end a maintenance", 1, (*storm).maintain},
	{"delete a namespace", 1, (*storm).deleteNamespace},
	{"make namespaces", 2, (*storm).makeNamespaces},
}

// grant creates a user with the necessary rights for each instigator and each evacuator.
func (s *storm) grant() {
	s.t.Helper()
	rule := func(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs,
		}
	}
	deletePods := rule("", "pods", nil, "delete")
	for _, name := range instigators {
		cluster.Grant(s.t, name, deletePods,
			rule(v1alpha1.GroupName, "evacuations", nil, "get", "create", "update", "delete"),
			rule(v1alpha1.GroupName, "instigators", []string{name}, "use"),
			rule(v1alpha1.GroupName, "evacuators", nil, "assign"))
		s.as[name] = cluster.As(s.t, name)
	}
	for _, evacuator := range evacuators {
		class := evacuator.EvacuatorClass
		cluster.Grant(s.t, class, deletePods, rule(v1alpha1.GroupName, "evacuations/status", nil, "patch", "update"),
			rule(v1alpha1.GroupName, "evacuators", []string{class}, "progress"))
		s.as[class] = cluster.As(s.t, class)
	}
}

func one[T any](random *rand.Rand, list []T) T { return list[random.IntN(len(list))] }

// evacuations returns the client of a user for the Evacuations of a namespace.
func (s *storm) evacuations(user, namespace string) clientv1alpha1.EvacuationInterface {
	clients, ok := s.as[user]
	if !ok {
		clients = s.admin
	}
	return clients.Evacuations(namespace)
}

// evacuation returns a random existing Evacuation, or nil if there is none.
func (s *storm) evacuation(random *rand.Rand) *v1alpha1.Evacuation {
	list := s.recorder.View().Evacuations()
	if len(list) == 0 {
		return nil
	}
	return one(random, list)
}

func (s *storm) ask(ctx context.Context, random *rand.Rand) error {
	pods := s.recorder.View().Pods()
	if len(pods) == 0 {
		return errNothing
	}
	pod, user := one(random, pods), one(random, instigators)
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Finalizers: []string{v1alpha1.FinalizerInstigatorPrefix + user},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef:                  v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
			ProgressDeadlineSeconds: ptr.To(int32(1 + random.IntN(4))),
		},
	}
	if random.IntN(3) == 0 {
		e.Spec.Evacuators = []v1alpha1.Evacuator{evacuators[2]}
	}
	_, err := s.evacuations(user, pod.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}

// askTwice tries to create a second Evacuation of a pod.
func (s *storm) askTwice(ctx context.Context, random *rand.Rand) error {
	e := s.evacuation(random)
	if e == nil {
		return errNothing
	}
	second := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.Namespace, Name: "second-" + e.Name[:30], Finalizers: e.Finalizers},
		Spec:       v1alpha1.EvacuationSpec{PodRef: e.Spec.PodRef},
	}
	_, err := s.evacuations("", e.Namespace).Create(ctx, second, metav1.CreateOptions{})
	if err == nil {
		s.accuse("a second Evacuation of pod %s/%s was accepted", e.Namespace, e.Spec.PodRef.Name)
	}
	return err
}

func (s *storm) join(ctx context.Context, random *rand.Rand) error {
	return s.change(ctx, random, func(e *v1alpha1.Evacuation, own string) {
		if !slices.Contains(e.Finalizers, own) {
			e.Finalizers = append(slices.Clone(e.Finalizers), own)
		}
	})
}

func (s *storm) withdraw(ctx context.Context, random *rand.Rand) error {
	return s.change(ctx, random, func(e *v1alpha1.Evacuation, own string) {
		e.Finalizers = slices.DeleteFunc(slices.Clone(e.Finalizers), func(f string) bool { return f == own })
	})
}

// change changes an Evacuation as an instigator.
func (s *storm) change(ctx context.Context, random *rand.Rand, change func(e *v1alpha1.Evacuation, own string)) error {
	e, user := s.evacuation(random), one(random, instigators)
	if e == nil {
		return errNothing
	}
	e = e.DeepCopy()
	change(e, v1alpha1.FinalizerInstigatorPrefix+user)
	_, err := s.evacuations(user, e.Namespace).Update(ctx, e, metav1.UpdateOptions{})
	return err
}

func (s *storm) withdrawAnother(ctx context.Context, random *rand.Rand) error {
	e, user := s.evacuation(random), one(random, instigators)
	if e == nil {
		return errNothing
	}
	own := v1alpha1.FinalizerInstigatorPrefix + user
	kept := slices.DeleteFunc(slices.Clone(e.Finalizers), func(f string) bool { return f != own })
	if len(kept) == len(e.Finalizers) {
		return errNothing
	}
	e = e.DeepCopy()
	e.Finalizers = kept
	_, err := s.evacuations(user, e.Namespace).Update(ctx, e, metav1.UpdateOptions{})
	if err == nil {
		s.accuse("%s could withdraw Evacuation %s/%s for others", user, e.Namespace, e.Name)
	}
	return err
}

// deleteEvacuation deletes an Evacuation in the state that the recorder has, and checks whether the
// server should have refused it.
func (s *storm) deleteEvacuation(ctx context.Context, random *rand.Rand) error {
	e := s.evacuation(random)
	if e == nil {
		return errNothing
	}
	err := s.evacuations(one(random, instigators), e.Namespace).Delete(ctx, e.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &e.UID, ResourceVersion: &e.ResourceVersion},
	})
	forbidden := e.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid &&
		e.DeletionTimestamp == nil &&
		!meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionComplete)
	if err == nil && forbidden {
		pod, err := s.admin.Pods(e.Namespace).Get(ctx, e.Spec.PodRef.Name, metav1.GetOptions{})
		if err == nil && pod.UID == e.Spec.PodRef.UID {
			s.accuse("Evacuation %s/%s could be deleted although its evacuator forbids it and the pod is there",
				e.Namespace, e.Name)
		}
	}
	return err
}

// turnOf returns the active evacuator or, at random, another evacuator.
func turnOf(e *v1alpha1.Evacuation, random *rand.Rand) string {
	others := e.Spec.Evacuators
	isActive := slices.ContainsFunc(others, func(o v1alpha1.Evacuator) bool {
		return o.EvacuatorClass == e.Status.ActiveEvacuatorClass
	})
	switch {
	case isActive && random.IntN(5) > 0:
		return e.Status.ActiveEvacuatorClass
	case len(others) > 0:
		return one(random, others).EvacuatorClass
	}
	return one(random, evacuators).EvacuatorClass
}

// report sends a random report of an evacuator: a heartbeat, progress, that the evacuation can no
// longer be cancelled, or completion, which may be false.
func (s *storm) report(ctx context.Context, random *rand.Rand) error {
	e := s.evacuation(random)
	if e == nil {
		return errNothing
	}
	if random.IntN(4) == 0 {
		s.keep(e)
	}
	class := turnOf(e, random)
	status := map[string]any{}
	switch random.IntN(10) {
	case 0:
	case 1, 2:
		status["message"] = fmt.Sprintf("%s copies", class)
	case 3:
		status["expectedEvacuationFinishTime"] = time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
	case 4, 5:
		status["evacuationCancellationPolicy"] = v1alpha1.EvacuationCancellationPolicyForbid
	case 6:
		status["evacuationCancellationPolicy"] = v1alpha1.EvacuationCancellationPolicyAllow
	case 7:
		status["activeEvacuatorCompleted"], status["message"] = true, class+" claims to be done"
	default:
		if err := s.as[class].Pods(e.Namespace).Delete(ctx, e.Spec.PodRef.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(e.Spec.PodRef.UID)},
		}); err != nil {
			return err
		}
		status["activeEvacuatorCompleted"], status["message"] = true, class+" is done"
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	return s.heard(e, class)(s.evacuations(class, e.Namespace).Patch(ctx, e.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status"))
}

// heard checks that an accepted report came from the active evacuator.
func (s *storm) heard(e *v1alpha1.Evacuation, class string) func(*v1alpha1.Evacuation, error) error {
	return func(answer *v1alpha1.Evacuation, err error) error {
		if err == nil && answer.Status.ActiveEvacuatorClass != class {
			s.accuse("Evacuation %s/%s: %s was heard although the turn was with %s", e.Namespace, e.Name, class,
				answer.Status.ActiveEvacuatorClass)
		}
		return err
	}
}

func (s *storm) keep(e *v1alpha1.Evacuation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.old) >= 50 {
		s.old = s.old[1:]
	}
	s.old = append(s.old, e)
}

// reportLate sends a report of an evacuator with an old version of an Evacuation.
func (s *storm) reportLate(ctx context.Context, random *rand.Rand) error {
	s.mu.Lock()
	if len(s.old) == 0 {
		s.mu.Unlock()
		return errNothing
	}
	e := one(random, s.old).DeepCopy()
	s.mu.Unlock()
	class := e.Status.ActiveEvacuatorClass
	if s.as[class].Haulout == nil {
		return errNothing
	}
	e.Status.Message, e.Status.ActiveEvacuatorCompleted = class+" comes late", random.IntN(2) == 0
	if random.IntN(2) == 0 {
		if now, err := s.evacuations("", e.Namespace).Get(ctx, e.Name, metav1.GetOptions{}); err == nil {
			e.ResourceVersion, e.UID = now.ResourceVersion, now.UID
		}
	}
	return s.heard(e, class)(s.evacuations(class, e.Namespace).UpdateStatus(ctx, e, metav1.UpdateOptions{}))
}

// usurp writes status fields that only the server may write, as an evacuator or an administrator.
func (s *storm) usurp(ctx context.Context, random *rand.Rand) error {
	e := s.evacuation(random)
	if e == nil {
		return errNothing
	}
	e = e.DeepCopy()
	user, what := turnOf(e, random), ""
	if random.IntN(2) == 0 {
		user = ""
	}
	switch random.IntN(4) {
	case 0:
		what = "pass the turn on"
		if e.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction {
			e.Status.ActiveEvacuatorClass = one(random, evacuators).EvacuatorClass
		} else {
			e.Status.ActiveEvacuatorClass = v1alpha1.EvacuatorClassEviction
		}
	case 1:
		what = "count evictions"
		e.Status.FailedEvictionCounter++
	case 2:
		what = "say that it is blocked"
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: "Usurped", Status: metav1.ConditionTrue, Reason: "Usurped", LastTransitionTime: metav1.Now(),
		})
	case 3:
		what = "complete it"
		meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: "Usurped",
			Message: "not by the server",
		})
	}
	_, err := s.evacuations(user, e.Namespace).UpdateStatus(ctx, e, metav1.UpdateOptions{})
	if err == nil {
		s.accuse("Evacuation %s/%s: user %q could %s", e.Namespace, e.Name, user, what)
	}
	return err
}

// giveUp reports completion for the evacuators whose deadline is too long for a test: the
// evacuators of Evacuations that maintenances have created.
func (s *storm) giveUp(ctx context.Context) {
	for _, e := range s.recorder.View().Evacuations() {
		class := e.Status.ActiveEvacuatorClass
		if *e.Spec.ProgressDeadlineSeconds > 10 && s.as[class].Haulout != nil && !e.Status.ActiveEvacuatorCompleted {
			// The caller repeats giveUp until the report is accepted.
			_, _ = s.evacuations(class, e.Namespace).Patch(ctx, e.Name, types.MergePatchType,
				[]byte(`{"status":{"activeEvacuatorCompleted":true}}`), metav1.PatchOptions{}, "status")
		}
	}
}
