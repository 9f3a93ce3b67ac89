// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Previewer creates previews. Its errors can be returned to clients unchanged.
type Previewer interface {
	Preview(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenancePreview, error)
}

// PreviewREST serves nodemaintenances/preview, which only supports get and is not stored.
type PreviewREST struct {
	// TableConvertor returns the row that kubectl get shows without -o.
	rest.TableConvertor

	store     *genericregistry.Store
	scheme    *runtime.Scheme
	previewer Previewer
}

var _ rest.Getter = &PreviewREST{}

func newPreview(store *genericregistry.Store, scheme *runtime.Scheme, previewer Previewer) *PreviewREST {
	return &PreviewREST{
		TableConvertor: rest.NewDefaultTableConvertor(maintenance.Resource("nodemaintenances/preview")),
		store:          store, scheme: scheme, previewer: previewer,
	}
}

// New implements rest.Storage.
func (*PreviewREST) New() runtime.Object { return &v1alpha1.NodeMaintenancePreview{} }

// Destroy implements rest.Storage. It does nothing, since the store belongs to the main resource.
func (*PreviewREST) Destroy() {}

// Get returns the preview of a maintenance.
func (r *PreviewREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	stored, err := r.store.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	nm := &v1alpha1.NodeMaintenance{}
	if err := r.scheme.Convert(stored, nm, nil); err != nil {
		return nil, err
	}
	preview, err := r.previewer.Preview(ctx, nm)
	if err != nil {
		return nil, err
	}
	if v1alpha1.IsPaused(nm) {
		warning.AddWarning(ctx, "", fmt.Sprintf("the drain is paused, and the preview is about the time after the resume (%s)", protocol.ResumeCommand(nm)))
	}
	return preview, nil
}
