// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

const (
	// hostTimeout is the time that the server waits for the host cluster at its start: both often
	// start together.
	hostTimeout    = 2 * time.Minute
	hostRetryDelay = time.Second
)

// hostCluster is the cluster whose nodes and pods this server manages.
type hostCluster struct {
	config *rest.Config
	client kubernetes.Interface
	// policies are the plural names of the resources that the cluster serves in
	// admissionregistration.k8s.io/v1.
	policies sets.Set[string]
}

// jsonConfig returns the configuration for clients of kinds without protobuf.
func (h *hostCluster) jsonConfig() *rest.Config {
	c := rest.CopyConfig(h.config)
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, ""
	return c
}

// connect waits until the host cluster responds.
func (o *HostOptions) connect(ctx context.Context) (*hostCluster, error) {
	config, err := o.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	host := &hostCluster{config: config, client: client}
	var last error
	err = wait.PollUntilContextTimeout(ctx, hostRetryDelay, hostTimeout, true, func(context.Context) (bool, error) {
		list, err := client.Discovery().ServerResourcesForGroupVersion(admissionregistrationv1.SchemeGroupVersion.String())
		if err != nil {
			if last == nil {
				klog.FromContext(ctx).Info("Waiting for the host cluster", "host", config.Host, "err", err)
			}
			last = err
			return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err), nil
		}
		last = nil
		host.policies = sets.New[string]()
		for _, r := range list.APIResources {
			host.policies.Insert(r.Name)
		}
		return true, nil
	})
	if last != nil {
		return nil, fmt.Errorf("cannot reach the host cluster at %s: %w", config.Host, last)
	}
	return host, err
}

func (o *HostOptions) restConfig() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
	} else {
		config, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("--kubeconfig is required: this process does not run in a pod of the host cluster")
		}
		if err != nil {
			return nil, err
		}
	}
	config.QPS, config.Burst = o.QPS, o.Burst
	// Use one rate limiter for all clients of this process, including the clients of a term of
	// leadership.
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(o.QPS, o.Burst)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return rest.AddUserAgent(config, "haulout-apiserver"), nil
}

// switchOffMissingPolicies disables admission plugins whose kinds the host cluster does not serve:
// these plugins would wait for the kinds forever. MutatingAdmissionPolicy exists since Kubernetes
// 1.36, ValidatingAdmissionPolicy since 1.30.
func (h *hostCluster) switchOffMissingPolicies(ctx context.Context, o *genericoptions.AdmissionOptions) error {
	for plugin, resource := range map[string]string{
		mutatingpolicy.PluginName:   "mutatingadmissionpolicies",
		validatingpolicy.PluginName: "validatingadmissionpolicies",
	} {
		if h.policies.Has(resource) {
			continue
		}
		if sets.New(o.EnablePlugins...).Has(plugin) {
			return fmt.Errorf("--enable-admission-plugins has %s, but the host cluster does not serve %s of %s", plugin, resource, admissionregistrationv1.SchemeGroupVersion)
		}
		klog.FromContext(ctx).Info("Admission plugin is disabled because the host cluster does not serve its kind", "plugin", plugin, "resource", resource)
		o.DisablePlugins = append(o.DisablePlugins, plugin)
	}
	return nil
}

// refuseSecondStorage returns an error if another server with embedded storage is active: each
// server would have its own objects, and each request of a user would reach either of them at
// random. It observes the Lease for LeaseDuration to find out whether the holder renews the Lease.
// So it does not depend on the clock of another machine.
func (o CompletedOptions) refuseSecondStorage(ctx context.Context, leases coordinationclient.LeasesGetter, identity string) error {
	le := o.Controllers.LeaderElection
	if !o.Controllers.Enabled || !le.LeaderElect {
		return nil
	}
	var holder, renewal string
	var since time.Time
	for {
		lease, err := leases.Leases(o.Service.Namespace).Get(ctx, le.ResourceName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read Lease %s/%s: %w", o.Service.Namespace, le.ResourceName, err)
		}
		spec := lease.Spec
		if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || *spec.HolderIdentity == identity || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
			return nil
		}
		switch renewed := spec.RenewTime.String(); {
		case holder != *spec.HolderIdentity:
			klog.FromContext(ctx).Info("Another server holds the Lease, waiting for it to expire", "lease", klog.KObj(lease), "holder", *spec.HolderIdentity)
			holder, renewal, since = *spec.HolderIdentity, renewed, time.Now()
		case renewal != renewed:
			return fmt.Errorf("another server (%s) is active and renews Lease %s/%s: embedded storage allows only one replica; "+
				"set the same --etcd-servers on all replicas, or stop the other server", holder, o.Service.Namespace, le.ResourceName)
		case time.Since(since) >= time.Duration(*spec.LeaseDurationSeconds)*time.Second:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(le.RetryPeriod.Duration):
		}
	}
}
