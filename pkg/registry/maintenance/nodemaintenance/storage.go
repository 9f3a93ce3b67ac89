// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"cmp"
	"context"
	"strings"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeMaintenances and of their subresources.
type Storage struct {
	NodeMaintenance *REST
	Status          *status.REST
	Preview         *PreviewREST
}

// NewStorage returns the storage.
func NewStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy, previewer Previewer) (Storage, error) {
	store, err := kind.NewStore(optsGetter, "nodemaintenance", &maintenance.NodeMaintenance{}, &maintenance.NodeMaintenanceList{},
		strategy, NewTableConvertor(strategy.Clock), func(nm *maintenance.NodeMaintenance) fields.Set {
			return fields.Set{
				maintenance.FieldName:           nm.Name,
				maintenance.FieldStage:          string(nm.Spec.Stage),
				maintenance.FieldNodeOfShutdown: protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector),
			}
		})
	if err != nil {
		return Storage{}, err
	}
	return Storage{
		NodeMaintenance: &REST{&kind.REST{Store: store, Short: "nm", Warnings: strategy.WarningsOnCreate}},
		Status:          status.New(store, &StatusStrategy{strategy}),
		Preview:         newPreview(store, strategy.Scheme, previewer),
	}, nil
}

// REST serves nodemaintenances.
type REST struct {
	*kind.REST
}

// List implements rest.Lister. Without a watch cache, a list reads all maintenances from etcd. A
// list of the shutdowns of a node, which each node agent requests when it starts, reads only the
// maintenances whose names begin as those of this node do.
func (r *REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if node := nodeOfShutdowns(options); node != "" {
		return r.listShutdowns(ctx, node, options)
	}
	return r.Store.List(ctx, options)
}

// nodeOfShutdowns returns the node whose shutdowns a request lists; "" if the request lists other
// maintenances, continues a list, or requires a certain state of the storage.
func nodeOfShutdowns(options *metainternalversion.ListOptions) string {
	if options == nil || options.FieldSelector == nil || options.Continue != "" || options.ResourceVersion != "" && options.ResourceVersion != "0" {
		return ""
	}
	node, _ := options.FieldSelector.RequiresExactMatch(maintenance.FieldNodeOfShutdown)
	if strings.Contains(node, "/") {
		return "" // no node has this name, and a token with it is invalid
	}
	return node
}

// listShutdowns lists the newest state of the maintenances of the shutdowns of a node. It returns
// all of them, whatever the limit of the request is: a node has few.
func (r *REST) listShutdowns(ctx context.Context, node string, options *metainternalversion.ListOptions) (runtime.Object, error) {
	prefix := protocol.ShutdownNamePrefix(node)
	// The token of a continued list is the only way to begin in the middle of the names. The
	// revision -1 stands for the newest state.
	first, err := storage.EncodeContinue("/"+prefix, "/", -1)
	if err != nil {
		return nil, err
	}
	page := *options
	page.ResourceVersion, page.ResourceVersionMatch = "", ""
	// With the field selector, the store would read etcd until the page is full.
	page.FieldSelector = nil
	page.Limit, page.Continue = protocol.MaxShutdowns+1, first
	selected := r.PredicateFunc(labels.Everything(), options.FieldSelector)
	found := &maintenance.NodeMaintenanceList{Items: []maintenance.NodeMaintenance{}}
	for {
		obj, err := r.Store.List(ctx, &page)
		if err != nil {
			return nil, err
		}
		list := obj.(*maintenance.NodeMaintenanceList)
		found.ResourceVersion = cmp.Or(found.ResourceVersion, list.ResourceVersion)
		for i := range list.Items {
			nm := &list.Items[i]
			if !strings.HasPrefix(nm.Name, prefix) {
				return found, nil
			}
			isSelected, err := selected.Matches(nm)
			if err != nil {
				return nil, err
			}
			if isSelected {
				found.Items = append(found.Items, *nm)
			}
		}
		if list.Continue == "" {
			return found, nil
		}
		page.Continue = list.Continue
	}
}

// Create creates a maintenance. It refuses a maintenance for which the line between old and new
// nodes is required and unknown, see drawLine.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, withLine(validate), options)
}

// Update updates a maintenance. It refuses a change for which the line between old and new nodes is
// required and unknown, see drawLine.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validate rest.ValidateObjectFunc,
	validateUpdate rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.Store.Update(ctx, name, info, withLine(validate), func(ctx context.Context, obj, old runtime.Object) error {
		if err := refuseWithoutLine(obj.(*maintenance.NodeMaintenance)); err != nil {
			return err
		}
		return validateUpdate(ctx, obj, old)
	}, forceAllowCreate, options)
}

// withLine returns a validation of new objects that first refuses an object without the required
// line, see drawLine.
func withLine(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if err := refuseWithoutLine(obj.(*maintenance.NodeMaintenance)); err != nil {
			return err
		}
		return validate(ctx, obj)
	}
}
