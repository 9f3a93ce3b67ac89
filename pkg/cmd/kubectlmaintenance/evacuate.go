// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/drainer"
	"haulout.dev/haulout/pkg/mergepatch"
)

// pollEvery is the interval at which evacuate reads the Evacuation that it waits for.
const pollEvery = time.Second

type evacuateOptions struct {
	waitOptions
	cancel bool
}

func (e *environment) newEvacuateCommand() *cobra.Command {
	o := &evacuateOptions{waitOptions: waitOptions{output: outputOfObjects("requested")}}
	cmd := &cobra.Command{
		Use:   "evacuate POD",
		Short: "Ask a single pod to leave its node, as a drain would",
		Long: `Ask a single pod to leave its node, as a drain would: its evacuators act first, such as the one that starts another
pod of the Deployment, and then the Eviction API, within the disruption budget. The node is not cordoned, so another
pod of the same kind may come to it.

The command creates the Evacuation of the pod with the instigator ` + protocol.InstigatorManual + `, or adds this
instigator to an Evacuation that a maintenance has created. --cancel removes it again, together with the instigator
` + v1alpha1.InstigatorRawEviction + `, with which the server keeps the request of a client such as
"kubectl drain". If that client tries to evict the pod again, the server asks it to leave again. A pod that another
instigator asks to leave, such as a maintenance, still leaves; the command prints that, with the name of the maintenance
if you may list nodemaintenances.

You need these rights in the namespace of the pod, all of which the ClusterRole admin has (haulout-evacuation-admin is
aggregated to it): get and delete the pod; get, create, update and patch evacuations; use the instigator
` + protocol.InstigatorManual + `, and the other one to cancel what a client has requested. A Deployment is scaled up before its pod leaves only if you may update its scale.

The exit codes are those of "kubectl maintenance wait". An evacuation that another user cancels ends it with 4.`,
		Example: `  # Ask a pod to leave, and wait until it is gone, for ten minutes at most
  kubectl maintenance evacuate checkout-a --namespace=shop --wait --timeout=10m

  # Withdraw the request
  kubectl maintenance evacuate --cancel checkout-a --namespace=shop`,
		SuggestFor: []string{"evict", "move"},
	}
	cmd.Flags().BoolVar(&o.cancel, "cancel", false, "Withdraw the request that a user made with this command, or another client by an eviction.")
	o.addStageFlags(cmd, false, "Wait until the pod has left.")
	return aboutOne(cmd, "a pod", e.completePods, func(ctx context.Context, name string) error { return e.evacuate(ctx, o, podName(name)) })
}

// podName removes the kind from a name such as pod/web-1.
func podName(arg string) string { return withoutKind(arg, "pod", "pods", "po") }

// namespace returns the namespace of --namespace or of the kubeconfig.
func (e *environment) namespace() (string, error) {
	namespace, _, err := e.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

func (o *evacuateOptions) validate() error {
	switch {
	case o.dryRun.strategy == dryRunClient:
		return errors.New("invalid --dry-run=client: only the server can find the evacuators of the pod; use --dry-run=server")
	case o.cancel && o.wait:
		return errors.New("--cancel cannot be combined with --wait: the pod stays")
	case o.cancel:
		o.output.says("cancelled")
	}
	return cmp.Or(o.needsWait(), o.waitOptions.validate())
}

func (e *environment) evacuate(ctx context.Context, o *evacuateOptions, name string) error {
	if err := o.validate(); err != nil {
		return err
	}
	namespace, err := e.namespace()
	if err != nil {
		return err
	}
	c, err := e.connect()
	if err != nil {
		return err
	}
	if o.cancel {
		return e.cancelEvacuation(ctx, c, o, namespace, name)
	}
	pod, err := getPod(ctx, c, namespace, name)
	switch {
	case err != nil:
		return err
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return fmt.Errorf("pod %s/%s has already ended (%s)", namespace, name, pod.Status.Phase)
	case pod.Spec.NodeName == "":
		return fmt.Errorf("pod %s/%s is on no node yet", namespace, name)
	}
	requested, err := requestEvacuation(ctx, c, o, pod)
	if err != nil {
		return err
	}
	if err := e.write(o.output, requested); err != nil {
		return err
	}
	if back := show.ComesBack(pod); back != "" {
		e.screen(e.ErrOut).Printf("Note: this does not empty node %s: %s.", pod.Spec.NodeName, back)
	}
	switch {
	case o.dryRun.isOn():
		return nil
	case o.wait:
		return e.awaitEvacuation(ctx, c, o, requested)
	}
	e.hint(o.output, "See how it goes: kubectl maintenance explain pod/%s --namespace=%s", name, namespace)
	return nil
}

// requestEvacuation creates the Evacuation of a pod, or adds the instigator of people to it.
func requestEvacuation(ctx context.Context, c clients, o *evacuateOptions, pod *corev1.Pod) (*v1alpha1.Evacuation, error) {
	evacuations := c.haulout.MaintenanceV1alpha1().Evacuations(pod.Namespace)
	name := protocol.CanonicalName(pod.Name, pod.UID)
	created, err := evacuations.Create(ctx, &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name, Finalizers: []string{protocol.FinalizerInstigatorManual}},
		Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{DryRun: o.dryRun.inRequests(), FieldManager: manager, FieldValidation: metav1.FieldValidationStrict})
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	existing, err := evacuations.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, err
	case existing.DeletionTimestamp != nil:
		return nil, fmt.Errorf("the earlier Evacuation %s of pod %s/%s is being deleted; try again in a moment", name, pod.Namespace, pod.Name)
	case protocol.IsComplete(existing):
		return nil, fmt.Errorf("the earlier Evacuation %[1]s of pod %[2]s/%[3]s has ended (%[4]s), and the server deletes it after a while; "+
			"to request another one now: kubectl delete evacuations.%[5]s %[1]s --namespace=%[2]s", name, pod.Namespace, pod.Name, glance.State(existing), v1alpha1.GroupName)
	case slices.Contains(existing.Finalizers, protocol.FinalizerInstigatorManual):
		return existing, o.unchanged()
	}
	return patchFinalizers(ctx, c, o, existing, append(slices.Clone(existing.Finalizers), protocol.FinalizerInstigatorManual))
}

// isCancelled reports whether --cancel removes a finalizer: users request evacuations with this
// command and with evictions, which the server turns into Evacuations.
func isCancelled(finalizer string) bool {
	return finalizer == protocol.FinalizerInstigatorManual || finalizer == v1alpha1.FinalizerInstigatorRawEviction
}

// patchFinalizers sets the finalizers of an Evacuation. The resourceVersion makes the patch fail if
// the Evacuation has changed in the meantime: another instigator may have been added.
func patchFinalizers(ctx context.Context, c clients, o *evacuateOptions, old *v1alpha1.Evacuation, finalizers []string) (*v1alpha1.Evacuation, error) {
	return mergepatch.IfUnchanged(ctx, c.haulout.MaintenanceV1alpha1().Evacuations(old.Namespace).Patch, old,
		map[string]any{"finalizers": finalizers}, nil, metav1.PatchOptions{DryRun: o.dryRun.inRequests(), FieldManager: manager})
}

// cancelEvacuation withdraws the requests of users for the evacuation of a pod. It needs no pod:
// the name may belong to several Evacuations, of which at most one is open.
func (e *environment) cancelEvacuation(ctx context.Context, c clients, o *evacuateOptions, namespace, name string) error {
	found, err := evacuationsOfPod(ctx, c, namespace, name)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(found, func(one v1alpha1.Evacuation) bool {
		return !protocol.IsComplete(&one) && slices.ContainsFunc(one.Finalizers, isCancelled)
	})
	if at < 0 {
		others := ""
		for i := range found {
			if !protocol.IsComplete(&found[i]) && protocol.HasInstigator(found[i].Finalizers) {
				others = fmt.Sprintf("; %s asks for it, which this command does not cancel", requestersOf(ctx, c, &found[i]))
			}
		}
		return fmt.Errorf("no user has asked pod %s/%s to leave%s", namespace, name, others)
	}
	evacuation := &found[at]
	left := slices.DeleteFunc(slices.Clone(evacuation.Finalizers), isCancelled)
	cancelled, err := patchFinalizers(ctx, c, o, evacuation, left)
	if err != nil {
		return err
	}
	if err := e.write(o.output, cancelled); err != nil {
		return err
	}
	switch {
	case protocol.HasInstigator(left):
		e.screen(e.ErrOut).Printf("Note: the pod still leaves: %s asks for it, too.", requestersOf(ctx, c, cancelled))
	case evacuation.Status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid:
		e.screen(e.ErrOut).Printf("Note: the pod still leaves: the evacuator %s can no longer stop.", evacuation.Status.ActiveEvacuatorClass)
	}
	return nil
}

// requestersOf describes who requests an evacuation, with the names of the maintenances if the user
// may list them.
func requestersOf(ctx context.Context, c clients, evacuation *v1alpha1.Evacuation) string {
	f := show.PodFacts{Evacuation: evacuation, Node: evacuation.Spec.NodeName}
	// Without the maintenances, the description has no names.
	_ = maintenancesOfPod(ctx, c, &f)
	return f.Requesters()
}

// getPod reads a pod. If it does not exist, the error has its namespace, which may be wrong.
func getPod(ctx context.Context, c clients, namespace, name string) (*corev1.Pod, error) {
	pod, err := c.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if answer.ObjectGone(err) {
		err = fmt.Errorf("%w in namespace %s (to choose another one: --namespace)", err, namespace)
	}
	return pod, err
}

// evacuationsOfPod returns the Evacuations of the pods with a name.
func evacuationsOfPod(ctx context.Context, c clients, namespace, name string) ([]v1alpha1.Evacuation, error) {
	found, err := c.haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(maintenance.FieldPodName, name).String(),
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found.Items, func(one v1alpha1.Evacuation) bool { return one.Spec.PodRef.Name != name }), nil
}

// awaitEvacuation waits until the pod of an Evacuation has left, and shows each change.
func (e *environment) awaitEvacuation(ctx context.Context, c clients, o *evacuateOptions, first *v1alpha1.Evacuation) error {
	out := e.Out
	if o.output.format() != "" {
		out = e.ErrOut
	}
	ctx, cancel := o.timeout.begin(ctx)
	defer cancel()
	r, pod := e.newReporter(out), first.Namespace+"/"+first.Spec.PodRef.Name
	defer r.screen.Keep()
	last, poll := first, reads{}
	for {
		state := glance.State(last)
		done := glance.IsOver(state)
		e.reportEvacuation(r, last, poll.note(e.now()), done)
		switch {
		case state == glance.StateCancelled:
			return exitWith(exitEnded, "the evacuation of pod %s was cancelled", pod)
		case done:
			return nil
		}
		select {
		case <-ctx.Done():
			return evacuationEnded(ctx, last, pod, o.timeout.text)
		case <-time.After(pollEvery):
		}
		poll.begin(e.now())
		request, end := context.WithTimeout(ctx, answerWithin)
		now, err := c.haulout.MaintenanceV1alpha1().Evacuations(first.Namespace).Get(request, first.Name, metav1.GetOptions{})
		end()
		poll.end(err)
		switch {
		case answer.ObjectGone(err) || err == nil && now.UID != first.UID:
			return e.afterDeletion(ctx, c, first, pod)
		case err != nil && ctx.Err() != nil:
			return evacuationEnded(ctx, last, pod, o.timeout.text)
		case err != nil && !answer.IsTemporary(err):
			return err
		case err == nil:
			last = now
		}
	}
}

// reportEvacuation shows the state of an Evacuation, and the note that it may be out of date.
func (e *environment) reportEvacuation(r *reporter, last *v1alpha1.Evacuation, note string, final bool) {
	summary := show.EvacuationSummary(last)
	if note != "" {
		summary += "; " + note
	}
	r.report(func(int) []screen.Line {
		lines := show.Evacuation(last, e.now(), fitting(r.screen))
		if note != "" {
			lines = append(lines, screen.Line{Text: "  note: " + note, Style: screen.Warning})
		}
		return lines
	}, summary, final)
}

// afterDeletion reports what became of a pod whose Evacuation was deleted between two reads. The
// timeout may have passed meanwhile.
func (e *environment) afterDeletion(ctx context.Context, c clients, evacuation *v1alpha1.Evacuation, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainer.LastRead)
	defer cancel()
	pod, err := c.kube.CoreV1().Pods(evacuation.Namespace).Get(ctx, evacuation.Spec.PodRef.Name, metav1.GetOptions{})
	switch {
	case answer.ObjectGone(err), err == nil && pod.UID != evacuation.Spec.PodRef.UID:
		return nil
	case err != nil:
		return err
	}
	return exitWith(exitEnded, "the evacuation of pod %s was cancelled", name)
}

// evacuationEnded returns the error after a timeout or an interruption.
func evacuationEnded(ctx context.Context, last *v1alpha1.Evacuation, pod, after string) error {
	if !errors.Is(context.Cause(ctx), errTimeout) {
		return exitWith(exitInterrupted, "interrupted; the evacuation of pod %s continues. To cancel it: kubectl maintenance evacuate --cancel %s --namespace=%s",
			pod, last.Spec.PodRef.Name, last.Namespace)
	}
	if show.Blocked(last) {
		return exitWith(exitBlocked, "pod %s is blocked after %s; the server keeps trying. To see who must act: kubectl maintenance explain pod/%s --namespace=%s",
			pod, after, last.Spec.PodRef.Name, last.Namespace)
	}
	return exitWith(exitTimeout, "pod %s has not left after %s; the server continues", pod, after)
}
