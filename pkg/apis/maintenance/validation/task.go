// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// validateTask checks the work on the nodes of a maintenance, but not doneWhen: the packages of the
// API do not evaluate expressions.
func validateTask(task *maintenance.NodeMaintenanceTask, path *field.Path) field.ErrorList {
	if task == nil {
		return nil
	}
	var errs field.ErrorList
	if task.Worker != "" && !strings.Contains(task.Worker, ".") {
		errs = append(errs, field.Invalid(path.Child("worker"), task.Worker, "must be the full name of a class, such as reboot.maintenance.haulout.dev"))
	}
	if task.Worker == v1alpha1.WorkerClassReboot && task.Stage == maintenance.NodeTaskStageCordon {
		errs = append(errs, field.Invalid(path.Child("stage"), task.Stage, "must be Drain for this worker, which reboots the node: in stage Cordon its pods stay"))
	}
	parameters, bytes := path.Child("parameters"), 0
	for key, value := range task.Parameters {
		bytes += len(key) + len(value)
		if key == "" {
			errs = append(errs, field.Required(parameters, "a key must not be empty"))
		}
	}
	if n := len(task.Parameters); n > protocol.MaxTaskParameters {
		errs = append(errs, field.TooMany(parameters, n, protocol.MaxTaskParameters))
	}
	if bytes > protocol.MaxTaskParameterBytes {
		errs = append(errs, field.Forbidden(parameters, fmt.Sprintf("keys and values take %d bytes, at most %d bytes are allowed together",
			bytes, protocol.MaxTaskParameterBytes)))
	}
	return errs
}

// ValidateNodeTask validates a new NodeTask.
func ValidateNodeTask(task *maintenance.NodeTask) field.ErrorList {
	return apivalidation.ValidateObjectMeta(&task.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
}

// ValidateNodeTaskUpdate validates a change of a NodeTask through its main resource.
func ValidateNodeTaskUpdate(task, old *maintenance.NodeTask) field.ErrorList {
	if apiequality.Semantic.DeepEqual(task.Spec, old.Spec) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, "is immutable").WithOrigin("immutable")}
}

// ValidateNodeTaskReport validates a write of the status by a worker. The registry has already set
// the fields that it sets in such a write.
func ValidateNodeTaskReport(status, old *maintenance.NodeTaskStatus) field.ErrorList {
	path := field.NewPath("status")
	var errs field.ErrorList
	for _, f := range []struct {
		name    string
		changed bool
	}{
		{"state", status.State != old.State},
		{"reason", status.Reason != old.Reason},
		{"serverMessage", status.ServerMessage != old.ServerMessage},
	} {
		if f.changed {
			errs = append(errs, field.Forbidden(path.Child(f.name), "only the server may write it"))
		}
	}
	holder := path.Child("holder")
	switch {
	case old.Holder == "" && status.Holder == "":
		errs = append(errs, field.Required(holder, "the worker must claim the node before it reports"))
	case old.Holder != "" && status.Holder != old.Holder:
		errs = append(errs, field.Forbidden(holder, fmt.Sprintf("is %q and must not change", old.Holder)))
	case status.Holder != old.Holder && old.State != maintenance.NodeTaskOffered:
		errs = append(errs, field.Forbidden(holder, fmt.Sprintf("the task is %s, not %s", old.State, maintenance.NodeTaskOffered)))
	}
	return append(errs, validateResult(status, old, path.Child("result"))...)
}

// validateResult checks the result of the work. A late Done is accepted after the task has failed.
func validateResult(status, old *maintenance.NodeTaskStatus, path *field.Path) field.ErrorList {
	switch {
	case status.Result == old.Result:
		return nil
	case status.Result == "" || old.Result == maintenance.NodeTaskResultDone:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("is %q and must not change", old.Result))}
	case old.State != maintenance.NodeTaskClaimed && old.State != maintenance.NodeTaskFailed:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("the task is %s, not %s", old.State, maintenance.NodeTaskClaimed))}
	}
	return nil
}
