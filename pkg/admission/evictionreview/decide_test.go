// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	classA  = "flush.example.com"
	podUID  = types.UID("11111111-2222-3333-4444-555555555555")
	ttl     = 15 * time.Minute
	raw     = v1alpha1.FinalizerInstigatorRawEviction
	ofNodes = v1alpha1.FinalizerInstigatorNodeMaintenance
)

var (
	now  = time.Date(2026, 11, 27, 1, 0, 0, 0, time.UTC)
	name = protocol.CanonicalName("db-1", podUID)
)

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(-d)} }

func newPod(mods ...func(*corev1.Pod)) *corev1.Pod {
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "db-1", UID: podUID},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}, mods...)
}

// annotated makes a pod name an evacuator.
func annotated(p *corev1.Pod) {
	p.Annotations = map[string]string{v1alpha1.AnnotationEvacuatorPrefix + classA: "20000"}
}

func ownedBy(version, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		controller := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "x", UID: "x", Controller: &controller}}
	}
}

// newEvacuation returns an Evacuation that an eviction made two minutes ago, with an active
// evacuator.
func newEvacuation(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: name, UID: "evacuation-1", CreationTimestamp: *ago(2 * time.Minute), Finalizers: []string{raw},
			Annotations: map[string]string{v1alpha1.AnnotationEvictionAsked: ago(2 * time.Minute).UTC().Format(time.RFC3339)},
		},
		Spec:   v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: "db-1", UID: podUID}},
		Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: classA},
	}, mods...)
}

func active(class string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorClass = class }
}

func withFinalizers(finalizers ...string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Finalizers = finalizers }
}

func askedAgo(d time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Annotations[v1alpha1.AnnotationEvictionAsked] = ago(d).UTC().Format(time.RFC3339)
	}
}

func deletedAgo(d time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.DeletionTimestamp = ago(d) }
}

func forbid(e *v1alpha1.Evacuation) {
	e.Status.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyForbid
}

func condition(conditionType, reason string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, Message: "text of an evacuator",
		})
	}
}

func cancelled(e *v1alpha1.Evacuation) {
	condition(v1alpha1.ConditionComplete, v1alpha1.ReasonCancelled)(e)
}

// The modifications of a situation. Each makes one row of the table apply.
func invalid(s *situation)        { s.eviction.valid = false }
func podGone(s *situation)        { s.pod = nil }
func anotherUID(s *situation)     { s.eviction.uid = "another" }
func sameUID(s *situation)        { s.eviction.uid = podUID }
func withoutEvac(s *situation)    { s.evacuation = nil }
func withoutClasses(s *situation) { s.evacuation, s.hasEvacuator = nil, false }
func isDryRun(s *situation)       { s.eviction.dryRun = true }
func leaderless(s *situation)     { s.noLeader = "none leads" }

func has(mods ...func(*v1alpha1.Evacuation)) func(*situation) {
	return func(s *situation) { s.evacuation = newEvacuation(mods...) }
}

func podIs(mods ...func(*corev1.Pod)) func(*situation) {
	return func(s *situation) { s.pod = newPod(append([]func(*corev1.Pod){annotated}, mods...)...) }
}

type decideTest struct {
	mods []func(*situation)
	want decision
	// says is a part of the message; empty means that there is no message.
	says string
}

var (
	passed   = decision{answer: answerPassed, allowed: true}
	notAware = decision{answer: answerNotAware, allowed: true}
	budget   = decision{answer: answerBudgetDecides, allowed: true}
	dryRun   = decision{answer: answerDryRun, allowed: true}
	noLeader = decision{answer: answerNoLeader, allowed: true}
	held     = decision{answer: answerError, allowed: true}
	underWay = decision{answer: answerUnderWay}
	made     = decision{answer: answerMade, create: true}

	// long makes an Evacuation one whose deletion does not end.
	long = deletedAgo(61 * time.Second)
)

func noted(d decision) decision {
	d.noteTime = true
	return d
}

// runDecide runs the cases of a table. Without modifications, the situation is an eviction of a pod
// whose evacuator is active because of an eviction two minutes ago.
func runDecide(t *testing.T, tests map[string]decideTest) {
	t.Helper()
	for title, test := range tests {
		t.Run(title, func(t *testing.T) {
			s := situation{
				now: now, ttl: ttl, eviction: eviction{valid: true, namespace: "blue", name: "db-1", user: "alice"},
				pod: newPod(annotated), evacuation: newEvacuation(), hasEvacuator: true, leaderSince: now.Add(-time.Hour),
			}
			for _, mod := range test.mods {
				mod(&s)
			}
			got := decide(s)
			if test.says == "" {
				is.Equal(t, got.message, "", "message")
			}
			is.True(t, strings.Contains(got.message, test.says), "got message %q, want %q in it", got.message, test.says)
			is.True(t, !strings.Contains(got.message, "text of an evacuator"), "the message %q quotes an evacuator", got.message)
			got.message = ""
			is.Equal(t, got, test.want, "decision")
		})
	}
}

// The tests of decide have every row of the table, and each pair of neighbours, of which the first
// applies. The names begin with the number of the row.
func TestDecideWhatPasses(t *testing.T) {
	runDecide(t, map[string]decideTest{
		"1: the body is not an Eviction":     {[]func(*situation){invalid}, passed, ""},
		"1: the pod does not exist":          {[]func(*situation){podGone}, passed, ""},
		"1: the precondition is another pod": {[]func(*situation){anotherUID}, passed, ""},
		"1: the pod is terminating":          {[]func(*situation){podIs(func(p *corev1.Pod) { p.DeletionTimestamp = ago(0) })}, passed, ""},
		"1: the pod has succeeded":           {[]func(*situation){podIs(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, passed, ""},
		"1: the pod has failed":              {[]func(*situation){podIs(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, passed, ""},
		"1: the pod has no node":             {[]func(*situation){podIs(func(p *corev1.Pod) { p.Spec.NodeName = "" })}, passed, ""},
		"1: a DaemonSet controls the pod":    {[]func(*situation){podIs(ownedBy("apps/v1", "DaemonSet"))}, passed, ""},
		"1: the pod is static":               {[]func(*situation){podIs(ownedBy("v1", "Node"))}, passed, ""},
		"1 before 2":                         {[]func(*situation){podGone, withoutClasses}, passed, ""},
		"a StatefulSet controls the pod":     {[]func(*situation){podIs(ownedBy("apps/v1", "StatefulSet"))}, underWay, classA},
		"another kind is called DaemonSet":   {[]func(*situation){podIs(ownedBy("kruise.example.com/v1", "DaemonSet"))}, underWay, classA},
		"the precondition is this pod":       {[]func(*situation){sameUID}, underWay, classA},

		"2: no Evacuation and no evacuator":      {[]func(*situation){withoutClasses}, notAware, ""},
		"2: a dry run needs no warning":          {[]func(*situation){withoutClasses, isDryRun}, notAware, ""},
		"2: nor does a missing leader":           {[]func(*situation){withoutClasses, leaderless}, notAware, ""},
		"3: a pod without evacuators, evacuated": {[]func(*situation){func(s *situation) { s.hasEvacuator = false }, has(active(v1alpha1.EvacuatorClassEviction))}, budget, ""},

		"3: no evacuator is left":               {[]func(*situation){has(active(v1alpha1.EvacuatorClassEviction))}, budget, ""},
		"3: a client that waits for the budget": {[]func(*situation){has(active(v1alpha1.EvacuatorClassEviction), askedAgo(6*time.Minute))}, noted(budget), ""},
		"3 before 4":                            {[]func(*situation){has(active(v1alpha1.EvacuatorClassEviction), askedAgo(6*time.Minute)), isDryRun}, budget, ""},
		"3 before 5":                            {[]func(*situation){has(active(v1alpha1.EvacuatorClassEviction)), leaderless}, budget, ""},
		"3 before 6":                            {[]func(*situation){has(active(v1alpha1.EvacuatorClassEviction), long)}, budget, ""},
		"3 before 7":                            {[]func(*situation){has(active(v1alpha1.EvacuatorClassEviction), cancelled)}, budget, ""},
	})
}

// TestDecideWithoutReplacement has the pods of a Deployment that can create no pods.
func TestDecideWithoutReplacement(t *testing.T) {
	surge, evict := active(v1alpha1.EvacuatorClassDeployment), active(v1alpha1.EvacuatorClassEviction)
	failed := condition(v1alpha1.ConditionBlocked, v1alpha1.ReasonReplicaFailure)
	says := `pod "blue/db-1" is evicted although it cannot be replaced (ReplicaFailure)`
	runDecide(t, map[string]decideTest{
		"no pod can be created":                            {[]func(*situation){has(surge, failed)}, budget, says},
		"pods are recreated":                               {[]func(*situation){has(surge, condition(v1alpha1.ConditionBlocked, v1alpha1.ReasonRecreated))}, budget, "(Recreated)"},
		"the client waits for a budget":                    {[]func(*situation){has(surge, failed, askedAgo(6*time.Minute))}, noted(budget), says},
		"before 4":                                         {[]func(*situation){has(surge, failed, askedAgo(6*time.Minute)), isDryRun}, budget, says},
		"before 5":                                         {[]func(*situation){has(surge, failed), leaderless}, budget, says},
		"a replacement is late":                            {[]func(*situation){has(surge, condition(v1alpha1.ConditionBlocked, v1alpha1.ReasonSurgePending))}, underWay, "blocked: SurgePending"},
		"another evacuator is active":                      {[]func(*situation){has(failed)}, underWay, "blocked: ReplicaFailure"},
		"a maintenance asks as well":                       {[]func(*situation){has(surge, failed, withFinalizers(raw, ofNodes))}, underWay, "blocked: ReplicaFailure"},
		"the server keeps the pod up for eviction":         {[]func(*situation){has(evict, failed, withFinalizers(raw, ofNodes))}, underWay, "blocked: ReplicaFailure"},
		"so does it for a client that has asked long ago":  {[]func(*situation){has(evict, failed, withFinalizers(raw, ofNodes), askedAgo(6*time.Minute))}, noted(underWay), "blocked: ReplicaFailure"},
		"so does it, and the request is a dry run":         {[]func(*situation){has(evict, failed, withFinalizers(raw, ofNodes)), isDryRun}, dryRun, name},
		"so did it, and no replica leads":                  {[]func(*situation){has(evict, failed, withFinalizers(raw, ofNodes)), leaderless}, noLeader, "none leads"},
		"only the eviction asks for a pod up for eviction": {[]func(*situation){has(evict, failed)}, budget, ""},
		"the Evacuation is deleted":                        {[]func(*situation){has(surge, failed, deletedAgo(0))}, underWay, "is being cancelled"},
		"it is not blocked any more": {[]func(*situation){has(surge, func(e *v1alpha1.Evacuation) {
			e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReplicaFailure}}
		})}, underWay, "is active"},
	})
}

func TestDecideWhatIsWarnedAbout(t *testing.T) {
	runDecide(t, map[string]decideTest{
		"4: a dry run while an evacuator is active": {[]func(*situation){isDryRun}, dryRun, name},
		"4: a dry run of what would be evacuated":   {[]func(*situation){isDryRun, withoutEvac}, dryRun, "would remove it first"},
		"4 before 5":                       {[]func(*situation){isDryRun, leaderless}, dryRun, name},
		"4 before 8 without a record":      {[]func(*situation){isDryRun, has(askedAgo(6 * time.Minute))}, dryRun, name},
		"5: no leader, with an Evacuation": {[]func(*situation){leaderless}, noLeader, "none leads"},
		"5 before 6":                       {[]func(*situation){leaderless, has(long)}, noLeader, "none leads"},
		"5 before 8":                       {[]func(*situation){leaderless, has(askedAgo(6 * time.Minute))}, noLeader, "none leads"},
		"5 before 9":                       {[]func(*situation){leaderless, withoutEvac}, noLeader, "none leads"},
	})
}

func TestDecideAboutEvacuations(t *testing.T) {
	runDecide(t, map[string]decideTest{
		"6: a deletion does not end":                 {[]func(*situation){has(long)}, held, name},
		"6 before 7":                                 {[]func(*situation){has(long, cancelled)}, held, name},
		"6: not while an evacuator has to finish":    {[]func(*situation){has(long, forbid)}, underWay, "cancelled too late"},
		"7: the Evacuation is being deleted":         {[]func(*situation){has(deletedAgo(time.Minute))}, underWay, "is being cancelled"},
		"7: the Evacuation is withdrawn":             {[]func(*situation){has(withFinalizers())}, underWay, "is being cancelled"},
		"7: the Evacuation is complete":              {[]func(*situation){has(cancelled)}, underWay, "is being cancelled"},
		"7: it is withdrawn and has to be finished":  {[]func(*situation){has(withFinalizers(), forbid)}, underWay, "cancelled too late"},
		"7 before 8":                                 {[]func(*situation){has(deletedAgo(0), askedAgo(6*time.Minute))}, underWay, "is being cancelled"},
		"8: asked a moment ago":                      {nil, underWay, "Eviction triggered evacuation of pod \"blue/db-1\": flush.example.com is active"},
		"8: asked five minutes ago":                  {[]func(*situation){has(askedAgo(5 * time.Minute))}, underWay, classA},
		"8: asked over five minutes ago":             {[]func(*situation){has(askedAgo(5*time.Minute + time.Second))}, noted(underWay), classA},
		"8: the record is missing":                   {[]func(*situation){has(func(e *v1alpha1.Evacuation) { e.Annotations = nil; e.CreationTimestamp = *ago(10 * time.Minute) })}, noted(underWay), classA},
		"8: a maintenance asks":                      {[]func(*situation){has(withFinalizers(ofNodes), askedAgo(time.Hour))}, underWay, classA},
		"8: a maintenance asks for a pod without":    {[]func(*situation){func(s *situation) { s.hasEvacuator = false }, has(withFinalizers(ofNodes))}, underWay, classA},
		"8: the message has the age of the report":   {[]func(*situation){has(func(e *v1alpha1.Evacuation) { e.Status.EvacuationProgressTimestamp = ago(90 * time.Second) })}, underWay, "last report 90s ago"},
		"8: the message has the reason of a blocker": {[]func(*situation){has(condition(v1alpha1.ConditionBlocked, "SurgePending"))}, underWay, "blocked: SurgePending"},
		"8: the NodeMaintenance is paused": {[]func(*situation){has(func(e *v1alpha1.Evacuation) {
			e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPaused}}
		})}, underWay, "paused"},
		"8: no class is active yet":   {[]func(*situation){has(active(""))}, underWay, "no evacuator is active yet"},
		"9: the pod has an evacuator": {[]func(*situation){withoutEvac}, made, ""},
	})
}

// TestDecideAfterDeadline has Evacuations whose evacuator should no longer be active. Without
// modifications its deadline is 30 minutes, and the leader has been there for an hour.
func TestDecideAfterDeadline(t *testing.T) {
	const late = 31*time.Minute + time.Second
	since := func(d time.Duration) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.Status.ActiveEvacuatorSince = ago(d) }
	}
	reported := func(d time.Duration) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.Status.EvacuationProgressTimestamp = ago(d) }
	}
	deadline := func(seconds int32) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = &seconds }
	}
	leads := func(d time.Duration) func(*situation) {
		return func(s *situation) { s.leaderSince = now.Add(-d) }
	}
	paused := func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPaused}}
	}
	blocked := func(reason string) func(*v1alpha1.Evacuation) { return condition(v1alpha1.ConditionBlocked, reason) }
	surge, evict := active(v1alpha1.EvacuatorClassDeployment), active(v1alpha1.EvacuatorClassEviction)
	ofUser := withFinalizers(v1alpha1.FinalizerInstigatorPrefix + "manual.maintenance.haulout.dev")
	says := `pod "blue/db-1" is evicted without its evacuators: the deadline of flush.example.com has passed`
	runDecide(t, map[string]decideTest{
		"for an eviction":                         {[]func(*situation){has(since(late))}, held, says},
		"for a maintenance":                       {[]func(*situation){has(since(late), withFinalizers(ofNodes))}, held, says},
		"for a user":                              {[]func(*situation){has(since(late), ofUser)}, held, says},
		"the eviction is recorded if possible":    {[]func(*situation){has(since(late), askedAgo(6*time.Minute))}, noted(held), says},
		"the last report was too long ago":        {[]func(*situation){has(since(time.Hour), reported(late))}, held, says},
		"a short deadline":                        {[]func(*situation){has(since(2*time.Minute+time.Second), deadline(60))}, held, says},
		"a silent evacuator":                      {[]func(*situation){has(since(late), blocked(v1alpha1.ReasonEvacuatorNotProgressing))}, held, says},
		"a replacement is late":                   {[]func(*situation){has(since(late), surge, blocked(v1alpha1.ReasonSurgePending))}, held, "the deadline of deployment"},
		"the leader has had the time for reports": {[]func(*situation){has(since(2 * time.Hour)), leads(6*time.Minute + time.Second)}, held, says},

		"the leader still has the time to act":     {[]func(*situation){has(since(31 * time.Minute))}, underWay, classA},
		"the evacuator reports":                    {[]func(*situation){has(since(2*time.Hour), reported(31*time.Minute))}, underWay, classA},
		"a long deadline":                          {[]func(*situation){has(since(2*time.Hour), deadline(7200))}, underWay, classA},
		"a new leader still waits for reports":     {[]func(*situation){has(since(2 * time.Hour)), leads(6 * time.Minute)}, underWay, classA},
		"so it does for those of a short deadline": {[]func(*situation){has(since(2*time.Hour), deadline(60)), leads(2 * time.Minute)}, underWay, classA},
		"the NodeMaintenance is paused":            {[]func(*situation){has(since(2*time.Hour), withFinalizers(ofNodes), paused)}, underWay, "paused"},
		"a maintenance waits for a replacement":    {[]func(*situation){has(since(2*time.Hour), withFinalizers(ofNodes), surge, blocked(v1alpha1.ReasonReplicaFailure))}, underWay, "ReplicaFailure"},
		"so it does for one on another node":       {[]func(*situation){has(since(2*time.Hour), withFinalizers(ofNodes), surge, blocked(v1alpha1.ReasonRecreated))}, underWay, "Recreated"},
		"a pod up for eviction is not replaced":    {[]func(*situation){has(since(2*time.Hour), withFinalizers(ofNodes), evict, blocked(v1alpha1.ReasonReplicaFailure))}, underWay, "ReplicaFailure"},
		"a pod up for eviction waits for a budget": {[]func(*situation){has(since(2*time.Hour), withFinalizers(ofNodes), evict, blocked(v1alpha1.ReasonPodDisruptionBudget))}, budget, ""},
		"the evacuator has to finish":              {[]func(*situation){has(since(2*time.Hour), forbid)}, underWay, classA},
		"no evacuator has become active":           {[]func(*situation){has(active(""))}, underWay, "no evacuator is active yet"},
		"the Evacuation ends":                      {[]func(*situation){has(since(2*time.Hour), deletedAgo(0))}, underWay, "is being cancelled"},
		"the request is a dry run":                 {[]func(*situation){has(since(2 * time.Hour)), isDryRun}, dryRun, name},
		"no replica leads, as the warning says":    {[]func(*situation){has(since(2 * time.Hour)), leaderless}, noLeader, "none leads"},
	})
}

// TestLongNames checks that the message keeps its limit, and its beginning, with the longest names.
func TestLongNames(t *testing.T) {
	s := situation{now: now, pod: newPod(), evacuation: newEvacuation(active(strings.Repeat("c", 54)), condition(v1alpha1.ConditionBlocked, "ReplicaFailure"))}
	s.pod.Namespace, s.pod.Name = strings.Repeat("n", 63), strings.Repeat("p", 253)
	s.evacuation.Name = protocol.CanonicalName(s.pod.Name, s.pod.UID)
	got := underWayMessage(s)
	is.True(t, len(got) <= maxMessage, "the message has %d bytes", len(got))
	for _, part := range []string{triggered, strings.Repeat("c", 54), "ReplicaFailure"} {
		is.True(t, strings.Contains(got, part), "got %q, want %q in it", got, part)
	}
}
