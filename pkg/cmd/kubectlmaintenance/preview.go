// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

// previewReason explains the temporary object of a preview to users who see it.
const previewReason = "temporary: kubectl maintenance created it for a preview and will delete it"

func (e *environment) newPreviewCommand() *cobra.Command {
	o := &startOptions{waitOptions: waitOptions{output: outputOfLines()}, stage: string(v1alpha1.NodeMaintenanceStageIdle)}
	var filename string
	cmd := &cobra.Command{
		Use:   "preview (NODE... | NAME | -l SELECTOR | -f FILE)",
		Short: "See what a drain would do: waves, evacuators of each pod, blockers",
		Long: `See what a drain would do if it began now: the waves of pods, the evacuators of each pod, and what will
block it. No node and no pod is changed.

With NAME, the command previews an existing maintenance; in stage Drain, it previews the rest of the drain. If NAME is
both a maintenance and a node, the maintenance is previewed; write node/NAME or nm/NAME to choose.

With nodes, a selector or a file, the command creates a temporary maintenance in stage Idle, because the server checks
your rights on the nodes when an object is created, and previews only existing objects. The command deletes the object
after the preview, also when you interrupt it. If the command is killed before that, the object remains, without
effect; its name starts with "preview-", and "kubectl maintenance cancel NAME" removes it.

You need the right to get nodemaintenances/preview. The exit code is 3 if the preview finds a problem that a user must
solve.`,
		Example: `  # What would happen if these nodes were drained?
  kubectl maintenance preview node-003 node-004

  # ... with all pods listed
  kubectl maintenance preview -l pool=blue -o wide

  # What will this maintenance do, or what is left of it?
  kubectl maintenance preview kernel-update

  # What would this manifest do?
  kubectl maintenance preview -f maintenance.yaml`,
		ValidArgsFunction: e.completeNodesAndMaintenances,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.preview(cmd.Context(), o, filename, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.selector, "selector", "l", "", "Preview the nodes that match this label selector.")
	flags.StringVar(&o.plan, "plan", "", "A file with the drain plan for the preview of nodes, or - for the standard input; see start --help.")
	flags.StringVarP(&filename, "filename", "f", "",
		"A file or URL with a NodeMaintenance, or - for the standard input. The object need not exist in the cluster.")
	_ = cmd.RegisterFlagCompletionFunc("selector", e.completeLabels)
	o.output.addFlags(cmd)
	return cmd
}

func (e *environment) preview(ctx context.Context, o *startOptions, filename string, args []string) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if filename != "" && (len(args) > 0 || o.selector != "" || o.plan != "") {
		return errors.New("--filename cannot be combined with nodes, a name, --selector or --plan")
	}
	c, err := e.connect()
	if err != nil {
		return err
	}
	preview, err := e.previewOf(ctx, c, o, filename, args)
	if err != nil {
		return err
	}
	if !o.output.forPeople() {
		if err := e.write(o.output, preview); err != nil {
			return err
		}
	} else {
		e.show(show.Preview(preview, o.output.options(e.screen(e.Out))))
	}
	if show.Blocks(preview) {
		return &exitError{code: exitBlocked}
	}
	return nil
}

// previewOf previews the nodes, the maintenance or the file that the arguments name.
func (e *environment) previewOf(ctx context.Context, c clients, o *startOptions, filename string, args []string) (*v1alpha1.NodeMaintenancePreview, error) {
	if filename != "" {
		nm, err := e.readMaintenance(filename)
		if err != nil {
			return nil, err
		}
		return e.previewTemporary(ctx, c, nm, nm.Name)
	}
	var missing error
	if len(args) == 1 && o.selector == "" && o.plan == "" && nodeName(args[0]) == args[0] {
		name := maintenanceName(args[0])
		preview, err := previewStored(ctx, c, name)
		// A name with the prefix nm/ cannot be a node.
		if err == nil || name != args[0] || !answer.ObjectGone(err) {
			return preview, err
		}
		missing = err
	}
	choice, err := chooseNodes(args, o.selector)
	if err != nil {
		return nil, err
	}
	if err := mayCreate(ctx, c); err != nil {
		return nil, fmt.Errorf("the preview of nodes needs a temporary maintenance: %w", err)
	}
	if err := e.checkNodes(ctx, c, choice, nodeChecks{stage: v1alpha1.NodeMaintenanceStageIdle, preview: true}); err != nil {
		if similar := e.suggestName(ctx, missing); similar != "" {
			err = fmt.Errorf("%w. A maintenance with a similar name: %s", err, similar)
		}
		return nil, err
	}
	nm, err := e.maintenanceOf(o, choice, v1alpha1.NodeMaintenanceStageIdle)
	if err != nil {
		return nil, err
	}
	return e.previewTemporary(ctx, c, nm, choice.title)
}

// previewFirstTimeout limits the optional preview before a drain.
const previewFirstTimeout = 30 * time.Second

// previewFirst prints the blockers of a drain, which the preview predicts, before it begins. If the
// preview fails, it returns a note about the failure. It returns an error only if the user
// interrupts the command.
func (e *environment) previewFirst(
	ctx context.Context, name string, preview func(context.Context) (*v1alpha1.NodeMaintenancePreview, error),
) (note string, err error) {
	bounded, cancel := context.WithTimeout(ctx, previewFirstTimeout)
	defer cancel()
	found, err := preview(bounded)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case found == nil:
		return fmt.Sprintf("Note: the preview failed, so blockers of the drain are not shown: %v", err), nil
	case err != nil:
		note = fmt.Sprintf("Note: %v", err)
	}
	s := e.screen(e.ErrOut)
	o := fitting(s)
	if lines := show.PreviewWarnings(found, name, o); len(lines) > 0 {
		s.Println(o.Fit(lines...)...)
	}
	return note, nil
}

// removeFor limits the deletion of the temporary object.
const removeFor = 15 * time.Second

// previewTemporary previews a maintenance that does not exist: it creates the object in stage Idle,
// which changes no node, and deletes it immediately.
func (e *environment) previewTemporary(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, title string) (preview *v1alpha1.NodeMaintenancePreview, err error) {
	temporary := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: e.nameFor("preview-" + title)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: nm.Spec.NodeSelector, DrainPlan: nm.Spec.DrainPlan, Stage: v1alpha1.NodeMaintenanceStageIdle, Reason: previewReason,
		},
	}
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	// Delete it even if the response to its creation was lost, or the command was interrupted.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeFor)
		defer cancel()
		if removeErr := maintenances.Delete(ctx, temporary.Name, metav1.DeleteOptions{}); removeErr != nil && !answer.ObjectGone(removeErr) && err == nil {
			err = fmt.Errorf("the temporary NodeMaintenance %[1]s was not deleted; it has no effect (to delete it: kubectl maintenance cancel %[1]s): %[2]w",
				temporary.Name, removeErr)
		}
	}()
	if _, err := maintenances.Create(ctx, temporary, metav1.CreateOptions{FieldManager: manager, FieldValidation: metav1.FieldValidationStrict}); err != nil {
		return nil, err
	}
	return previewStored(ctx, c, temporary.Name)
}

// previewStored previews an existing maintenance. After an error it returns a nil preview; the
// client returns an empty one.
func previewStored(ctx context.Context, c clients, name string) (*v1alpha1.NodeMaintenancePreview, error) {
	preview, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().GetPreview(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return preview, nil
}

// readMaintenance reads the one NodeMaintenance of a file. Unknown fields are errors, as they are
// for the server.
func (e *environment) readMaintenance(filename string) (*v1alpha1.NodeMaintenance, error) {
	builder := resource.NewLocalBuilder().Unstructured().ContinueOnError()
	if filename == "-" {
		builder = builder.Stream(e.In, "standard input")
	} else {
		builder = builder.FilenameParam(false, &resource.FilenameOptions{Filenames: []string{filename}})
	}
	infos, err := builder.Flatten().Do().Infos()
	if err != nil {
		return nil, err
	}
	if len(infos) != 1 {
		return nil, fmt.Errorf("%s contains %d objects; only a single NodeMaintenance can be previewed", filename, len(infos))
	}
	object, ok := infos[0].Object.(*unstructured.Unstructured)
	if !ok || object.GroupVersionKind() != v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance") {
		return nil, fmt.Errorf("%s contains a %s; only a NodeMaintenance of %s can be previewed", filename,
			infos[0].Object.GetObjectKind().GroupVersionKind().Kind, v1alpha1.SchemeGroupVersion)
	}
	var nm v1alpha1.NodeMaintenance
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &nm, true); err != nil {
		return nil, fmt.Errorf("%s: %w", filename, err)
	}
	return &nm, nil
}
