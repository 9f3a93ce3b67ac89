// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package kind has what the registries of all kinds have in common.
package kind

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// Base is the part of a strategy that does not depend on the kind.
type Base struct {
	rest.DeclarativeValidation
	names.NameGenerator

	// IsServer distinguishes the server's own controllers from all other users, including cluster
	// administrators.
	IsServer func(user.Info) bool
	Clock    clock.PassiveClock
}

// NewBase returns the part of a strategy.
func NewBase(scheme *runtime.Scheme, isServer func(user.Info) bool, clock clock.PassiveClock) Base {
	return Base{rest.DeclarativeValidation{Scheme: scheme}, names.SimpleNameGenerator, isServer, clock}
}

// NamespaceScoped returns false: like nodes, the objects about them have no namespace.
func (Base) NamespaceScoped() bool { return false }

// AllowCreateOnUpdate returns false: only POST and server-side apply create objects.
func (Base) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate returns false: PUT needs a resourceVersion. A PUT from a stale copy
// could silently widen a selector again, remove a hold, or overwrite the status that another client
// has just written. Patches and server-side apply do not need a version, since they contain only
// the changed fields. kubectl replace reads the version itself.
func (Base) AllowUnconditionalUpdate(context.Context) bool { return false }

// Canonicalize does nothing.
func (Base) Canonicalize(runtime.Object) {}

// WarningsOnCreate returns none.
func (Base) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate returns none.
func (Base) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string { return nil }

// GetResetFields returns the fields that a write to the main resource cannot change, so that
// server-side apply does not make clients the owners of these fields.
func (Base) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return Fields(fieldpath.MakePathOrDie("status"))
}

// Now returns the time in whole seconds, the stored precision: a response must not differ from
// later reads.
func (b Base) Now() metav1.Time { return metav1.NewTime(b.Clock.Now()).Rfc3339Copy() }

// ByServer reports whether the server itself makes a request.
func (b Base) ByServer(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && b.IsServer(u)
}

// maxUserName is the maximum length of the name of a user in an object, in bytes.
const maxUserName = 1024

// UserName returns the name of the user of a request, cut to 1024 bytes; "" if it has none.
func UserName(ctx context.Context) string {
	if u, ok := genericapirequest.UserFrom(ctx); ok {
		return wording.Cut(u.GetName(), maxUserName)
	}
	return ""
}

// Fields returns a set of fields in the form that server-side apply needs.
func Fields(paths ...fieldpath.Path) map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(paths...),
	}
}

// Strategy is the strategy of the main resource of a kind.
type Strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// NewStore returns the store of a kind, whose objects are like empty. selectable returns the fields
// for selectors of lists and watches.
func NewStore[T interface {
	runtime.Object
	metav1.Object
}](options generic.RESTOptionsGetter, singular string, empty T, list runtime.Object, strategy Strategy, table rest.TableConvertor,
	selectable func(T) fields.Set) (*genericregistry.Store, error) {
	store := &genericregistry.Store{
		NewFunc:                   empty.DeepCopyObject,
		NewListFunc:               list.DeepCopyObject,
		DefaultQualifiedResource:  maintenance.Resource(singular + "s"),
		SingularQualifiedResource: maintenance.Resource(singular),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            table,
	}
	attributes := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		of, ok := obj.(T)
		if !ok {
			return nil, nil, fmt.Errorf("a %T is not a %T", obj, empty)
		}
		return of.GetLabels(), selectable(of), nil
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: attributes}); err != nil {
		return nil, fmt.Errorf("complete the store of %ss: %w", singular, err)
	}
	return store, nil
}

// REST serves the objects of a kind.
type REST struct {
	*genericregistry.Store

	// Short is the short name of the resource.
	Short string
	// Warnings returns the warnings about an object that is read, such as that no replica leads, so
	// that no controller acts on it. Nil means none.
	Warnings func(context.Context, runtime.Object) []string
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
)

// Get implements rest.Getter. It adds the warnings.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	if err == nil && r.Warnings != nil {
		for _, text := range r.Warnings(ctx, obj) {
			warning.AddWarning(ctx, "", text)
		}
	}
	return obj, err
}

// ShortNames implements rest.ShortNamesProvider.
func (r *REST) ShortNames() []string { return []string{r.Short} }
