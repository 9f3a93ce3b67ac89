/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/maintenance/show"
)

// previewReason tells people who meet the object for which a preview is made.
const previewReason = "temporary: kubectl maintenance preview made it and deletes it again"

func (e *environment) newPreviewCommand() *cobra.Command {
	o := &startOptions{output: outputOfLines(), stage: string(v1alpha1.NodeMaintenanceStageIdle)}
	var filename string
	cmd := &cobra.Command{
		Use:   "preview (NODE... | NAME | -l SELECTOR | -f FILE)",
		Short: "See what a drain would do: waves, who takes each pod away, what will be in the way",
		Long: `See what a drain would do if it began now: the waves of pods, who takes each pod away, and what will be in the way. No
node and no pod is touched.

With NAME, an existing maintenance is previewed; in stage Drain that is what is still to come. A name that is both a
maintenance and a node stands for the maintenance; node/NAME and nm/NAME say which is meant.

With nodes, a selector or a file, a maintenance in stage Idle is made for the time of the question and deleted again, also
when the command is interrupted: the server answers only about objects, as it checks your rights on the nodes when
one is made. Should the command be killed before that, the object is left, without effect; its name starts
with "preview-", and "kubectl maintenance cancel NAME" removes it.

You need the right to get nodemaintenances/preview. The exit code is 3 if something will be in the way that does not
pass by itself.`,
		Example: `  # What would happen if these nodes were drained?
  kubectl maintenance preview node-003 node-004

  # ... with all pods listed
  kubectl maintenance preview -l pool=blue -o wide

  # What will this maintenance do, or still has to do?
  kubectl maintenance preview kernel-update

  # What would this manifest do?
  kubectl maintenance preview -f maintenance.yaml`,
		ValidArgsFunction: e.completeNodesAndMaintenances,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.preview(cmd.Context(), o, filename, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.selector, "selector", "l", "", "Preview the nodes with these labels.")
	flags.StringVar(&o.plan, "plan", "", "A file with the drainPlan to preview nodes with, - for the standard input; see start --help.")
	flags.StringVarP(&filename, "filename", "f", "", "A file with a NodeMaintenance that need not exist, a URL, or - for the standard input.")
	o.output.addFlags(cmd)
	return cmd
}

func (e *environment) preview(ctx context.Context, o *startOptions, filename string, args []string) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if filename != "" && (len(args) > 0 || o.selector != "" || o.plan != "") {
		return errors.New("--filename has all there is to preview; give no nodes, name, --selector or --plan beside it")
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
		if err := o.output.write(e.Out, preview); err != nil {
			return err
		}
	} else {
		e.show(show.Preview(preview, o.output.options(e.screen(e.Out).Columns())))
	}
	if show.Blocks(preview) {
		return &exitError{code: exitBlocked}
	}
	return nil
}

// previewOf finds out what is to be previewed, and previews it.
func (e *environment) previewOf(ctx context.Context, c clients, o *startOptions, filename string, args []string) (*v1alpha1.NodeMaintenancePreview, error) {
	if filename != "" {
		nm, err := e.readMaintenance(filename)
		if err != nil {
			return nil, err
		}
		return e.previewTemporary(ctx, c, nm, nm.Name)
	}
	if len(args) == 1 && o.selector == "" && o.plan == "" && nodeName(args[0]) == args[0] {
		name := maintenanceName(args[0])
		preview, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().GetPreview(ctx, name, metav1.GetOptions{})
		// A name with a kind before it cannot be a node.
		if err == nil || name != args[0] || !isMissing(err) {
			return preview, err
		}
	}
	choice, err := chooseNodes(args, o.selector)
	if err != nil {
		return nil, err
	}
	if err := e.checkNodes(ctx, c, choice, v1alpha1.NodeMaintenanceStageIdle, true); err != nil {
		return nil, err
	}
	nm, err := e.maintenanceOf(o, choice, v1alpha1.NodeMaintenanceStageIdle)
	if err != nil {
		return nil, err
	}
	return e.previewTemporary(ctx, c, nm, choice.title)
}

// isMissing says whether an error is about an object that does not exist, and not about an API that is not served.
func isMissing(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind != "" && len(status.Status().Details.Causes) == 0
}

// removeFor is how long the temporary object is tried to be deleted.
const removeFor = 15 * time.Second

// previewTemporary previews a maintenance that does not exist, which it makes for that time. An Idle one touches nothing and is deleted at once.
func (e *environment) previewTemporary(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, title string) (preview *v1alpha1.NodeMaintenancePreview, err error) {
	temporary := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: e.nameFor("preview-" + title)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: nm.Spec.NodeSelector, DrainPlan: nm.Spec.DrainPlan, Stage: v1alpha1.NodeMaintenanceStageIdle, Reason: previewReason,
		},
	}
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	// Deleted also if the answer to its creation was lost, and when the command was interrupted.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeFor)
		defer cancel()
		if removeErr := maintenances.Delete(ctx, temporary.Name, metav1.DeleteOptions{}); removeErr != nil && !apierrors.IsNotFound(removeErr) && err == nil {
			err = fmt.Errorf("the temporary NodeMaintenance %s is left, without effect (kubectl maintenance cancel %s): %w", temporary.Name, temporary.Name, removeErr)
		}
	}()
	if _, err := maintenances.Create(ctx, temporary, metav1.CreateOptions{FieldManager: manager, FieldValidation: metav1.FieldValidationStrict}); err != nil {
		return nil, err
	}
	preview, err = maintenances.GetPreview(ctx, temporary.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return preview, nil
}

// readMaintenance reads the one NodeMaintenance of a file. Unknown fields are errors, as they are for the server.
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
		return nil, fmt.Errorf("%s has %d objects; exactly one NodeMaintenance can be previewed", filename, len(infos))
	}
	object, ok := infos[0].Object.(*unstructured.Unstructured)
	if !ok || object.GroupVersionKind() != v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance") {
		return nil, fmt.Errorf("%s has a %s; only a NodeMaintenance of %s can be previewed", filename,
			infos[0].Object.GetObjectKind().GroupVersionKind().Kind, v1alpha1.SchemeGroupVersion)
	}
	var nm v1alpha1.NodeMaintenance
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &nm, true); err != nil {
		return nil, fmt.Errorf("%s: %w", filename, err)
	}
	return &nm, nil
}
