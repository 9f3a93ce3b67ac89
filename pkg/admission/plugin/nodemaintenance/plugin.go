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

// Package nodemaintenance decides who may put which nodes under maintenance, and warns of selectors
// that were hardly meant. It lists no pods: what a drain will do to them is the preview's business.
package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	genericinitializer "k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	kubeinformers "k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	listers "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/identity"
)

// PluginName is the name of the plugin in flags and configuration.
const PluginName = "NodeMaintenance"

// Config is what an administrator may set.
type Config struct {
	// AskEveryNodeByName switches off the shortcut of asking once whether the user may delete all
	// nodes. Without it a user who may delete all nodes is asked about by name for the
	// control-plane nodes and a hundred others only; an authorizer that denies single nodes by name
	// to such a user needs this set.
	AskEveryNodeByName bool
}

// Register adds the plugin. The configuration is read when the plugin is made, after flags are
// parsed.
func Register(plugins *admission.Plugins, config *Config) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) { return New(*config), nil })
}

// Plugin admits NodeMaintenances.
type Plugin struct {
	*admission.Handler

	config       Config
	identity     *identity.Server
	authorizer   authorizer.UnconditionalAuthorizer
	nodes        corelisters.NodeLister
	maintenances listers.NodeMaintenanceLister
	self         initializer.Self

	// warners each look for one thing that is worth a warning, the most important first.
	warners []warner
}

var (
	_ admission.ValidationInterface                       = &Plugin{}
	_ genericinitializer.WantsExternalKubeInformerFactory = &Plugin{}
	_ genericinitializer.WantsUnconditionalAuthorizer     = &Plugin{}
	_ initializer.WantsMaintenanceInformers               = &Plugin{}
	_ initializer.WantsServerIdentity                     = &Plugin{}
	_ initializer.WantsSelf                               = &Plugin{}
)

// New returns the plugin, to be initialized.
func New(config Config) *Plugin {
	p := &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), config: config}
	p.warners = []warner{p.warnOfServerNode, warnOfExtent, p.warnOfOthers, warnOfGroups, warnOfStatusSize}
	return p
}

// SetExternalKubeInformerFactory gives the informers of the host cluster. Nothing is admitted
// before its nodes are known: who may touch a node cannot be asked about a node that is not seen.
func (p *Plugin) SetExternalKubeInformerFactory(f kubeinformers.SharedInformerFactory) {
	nodes := f.Core().V1().Nodes()
	p.nodes = nodes.Lister()
	p.SetReadyFunc(nodes.Informer().HasSynced)
}

// SetUnconditionalAuthorizer gives the authorizer of the host cluster.
func (p *Plugin) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) { p.authorizer = a }

// SetMaintenanceInformers gives the informers of our API. They feed warnings only, so no request
// waits for them.
func (p *Plugin) SetMaintenanceInformers(f informers.SharedInformerFactory) {
	p.maintenances = f.Maintenance().V1alpha1().NodeMaintenances().Lister()
}

// SetServerIdentity gives the identity of the server.
func (p *Plugin) SetServerIdentity(s *identity.Server) { p.identity = s }

// SetSelf says where the server runs.
func (p *Plugin) SetSelf(self initializer.Self) { p.self = self }

// ValidateInitialization says what is missing.
func (p *Plugin) ValidateInitialization() error {
	switch {
	case p.nodes == nil:
		return errors.New("the informers of the host cluster are missing")
	case p.authorizer == nil:
		return errors.New("the authorizer is missing")
	case p.maintenances == nil:
		return errors.New("the informers of the maintenance API are missing")
	case p.identity == nil:
		return errors.New("the server's identity is missing")
	}
	return nil
}

// Validate refuses what the user may not do, and warns.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != maintenance.Resource("nodemaintenances") || p.identity.Is(a.GetUserInfo()) {
		return nil
	}
	switch a.GetSubresource() {
	case "":
	case "status":
		return admission.NewForbidden(a, errors.New("the status is the memory of the drain; the Haulout server alone writes it"))
	default:
		return nil
	}
	nm, old, err := objects(a)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if nm != nil && old != nil && (!needsAuthorization(nm, old) || isGarbageCollection(a.GetUserInfo(), nm, old)) {
		return nil
	}
	if !p.WaitForReady() {
		return apierrors.NewServiceUnavailable("the nodes of the cluster are not known yet, try again later")
	}
	change, err := p.changeOf(ctx, nm, old)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.authorize(ctx, a, change); err != nil {
		return err
	}
	if !sendsToNodes(nm, old) {
		return nil
	}
	if err := validateStatusSize(nm, len(change.selected)); err != nil {
		return err
	}
	p.warn(ctx, nm, change)
	return nil
}

// objects returns the new and the old object, nil where there is none.
func objects(a admission.Attributes) (nm, old *maintenance.NodeMaintenance, err error) {
	if nm, err = asNodeMaintenance(a.GetObject()); err != nil {
		return nil, nil, err
	}
	old, err = asNodeMaintenance(a.GetOldObject())
	if err == nil && nm == nil && old == nil {
		err = fmt.Errorf("%s without an object", a.GetOperation())
	}
	return nm, old, err
}

func asNodeMaintenance(obj runtime.Object) (*maintenance.NodeMaintenance, error) {
	if obj == nil {
		return nil, nil
	}
	nm, ok := obj.(*maintenance.NodeMaintenance)
	if !ok {
		return nil, fmt.Errorf("a %T is not a NodeMaintenance", obj)
	}
	return nm, nil
}

// needsAuthorization reports whether an update can have an effect on nodes. Owners and finalizers
// count: the garbage collector deletes, with its own rights, what names an owner that does not
// exist.
func needsAuthorization(nm, old *maintenance.NodeMaintenance) bool {
	return !apiequality.Semantic.DeepEqual(nm.Spec, old.Spec) ||
		!apiequality.Semantic.DeepEqual(nm.OwnerReferences, old.OwnerReferences) ||
		!apiequality.Semantic.DeepEqual(nm.Finalizers, old.Finalizers)
}

// isGarbageCollection reports whether an update is the garbage collector taking off its own
// finalizers and nothing else.
func isGarbageCollection(u user.Info, nm, old *maintenance.NodeMaintenance) bool {
	if u.GetName() != identity.GarbageCollector || !apiequality.Semantic.DeepEqual(nm.Spec, old.Spec) ||
		!apiequality.Semantic.DeepEqual(nm.OwnerReferences, old.OwnerReferences) {
		return false
	}
	kept := slices.DeleteFunc(slices.Clone(old.Finalizers), func(f string) bool {
		own := f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
		return own && !slices.Contains(nm.Finalizers, f)
	})
	return slices.Equal(nm.Finalizers, kept)
}

// sendsToNodes reports whether a write changes which nodes a maintenance takes, or what it does
// with them.
func sendsToNodes(nm, old *maintenance.NodeMaintenance) bool {
	if nm == nil || nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete {
		return false
	}
	return old == nil || nm.Spec.Stage != old.Spec.Stage || nm.Spec.NewNodes != old.Spec.NewNodes ||
		!apiequality.Semantic.DeepEqual(nm.Spec.NodeSelector, old.Spec.NodeSelector)
}

// validateStatusSize refuses a maintenance whose status cannot be stored once its plan has been
// reached: its nodes would be cordoned, and the drain could not remember what it has asked for.
func validateStatusSize(nm *maintenance.NodeMaintenance, nodes int) error {
	versioned := &v1alpha1.NodeMaintenance{}
	if err := v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(nm, versioned, nil); err != nil {
		return apierrors.NewInternalError(err)
	}
	bytes := size.StatusBytes(versioned.Spec.DrainPlan, nodes)
	if bytes <= size.MaxStatusBytes {
		return nil
	}
	return apierrors.NewInvalid(maintenance.Kind("NodeMaintenance"), nm.Name, field.ErrorList{field.Invalid(
		field.NewPath("spec", "drainPlan"), field.OmitValueType{}, fmt.Sprintf(
			"is too large for %d nodes: the status repeats its selectors for each node and would take %d KiB, at most %d KiB are allowed; "+
				"select fewer nodes per NodeMaintenance or use fewer or shorter podSelectors",
			nodes, bytes>>10, size.MaxStatusBytes>>10))})
}

// warn adds what the warners find to the response.
func (p *Plugin) warn(ctx context.Context, nm *maintenance.NodeMaintenance, c *change) {
	for _, text := range p.warnings(ctx, &write{nm: nm, change: c}) {
		warning.AddWarning(ctx, "", text)
	}
}
