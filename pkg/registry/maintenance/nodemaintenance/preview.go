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

package nodemaintenance

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Previewer creates previews. It returns errors that are suitable as responses to clients.
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
func (*PreviewREST) New() runtime.Object { return &maintenance.NodeMaintenancePreview{} }

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
	out := &maintenance.NodeMaintenancePreview{}
	return out, r.scheme.Convert(preview, out, nil)
}
