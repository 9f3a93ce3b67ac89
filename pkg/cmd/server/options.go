// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package server is the command line of the Haulout API server: its options, and the functions that
// start a server with them.
package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	componentbaseconfig "k8s.io/component-base/config"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics"

	"haulout.dev/haulout/pkg/admission"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apiserver"
	"haulout.dev/haulout/pkg/cmd/server/embeddedetcd"
	"haulout.dev/haulout/pkg/controller/eviction"
	nodemaintenancecontroller "haulout.dev/haulout/pkg/controller/nodemaintenance"
	"haulout.dev/haulout/pkg/host/rights"
)

// defaultDataDir is the mount path of the volume in the manifests.
const defaultDataDir = "/var/lib/haulout"

// etcdPrefix is the prefix of our keys, so that several applications can share an etcd.
const etcdPrefix = "/registry/" + v1alpha1.GroupName

// storageID is the pattern of a valid storage ID.
var storageID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Options are the flags of the server.
type Options struct {
	ServerRun      *genericoptions.ServerRunOptions
	Etcd           *genericoptions.EtcdOptions
	SecureServing  *genericoptions.SecureServingOptionsWithLoopback
	Authentication *genericoptions.DelegatingAuthenticationOptions
	Authorization  *genericoptions.DelegatingAuthorizationOptions
	Audit          *genericoptions.AuditOptions
	Features       *genericoptions.FeatureOptions
	Admission      *genericoptions.AdmissionOptions
	Traces         *genericoptions.TracingOptions
	Logs           *logs.Options
	Metrics        *metrics.Options

	Host        HostOptions
	Storage     StorageOptions
	Service     ServiceOptions
	Controllers ControllerOptions
	Evacuators  EvacuatorOptions
	// NodeRights are the rules about the right to maintain nodes.
	NodeRights NodeRightsOptions
	// EvictionReviews are the options of the admission of evictions.
	EvictionReviews EvictionReviewOptions
}

// HostOptions configure the connection to the host cluster. The help of the flags, in addFlags,
// describes the fields of these structs.
type HostOptions struct {
	Kubeconfig string
	QPS        float32
	Burst      int
}

// StorageOptions are the options of the embedded etcd.
type StorageOptions struct {
	DataDir    string
	QuotaBytes int64
}

// ServiceOptions identify the server in the host cluster.
type ServiceOptions struct {
	Namespace, Name string
}

// NodeRightsOptions configure the check of the right to maintain nodes.
type NodeRightsOptions struct {
	rights.Rules
	// PoolLabelWritableByNodes is set if the label of the pools may be one that a kubelet can
	// change on its own node.
	PoolLabelWritableByNodes bool
}

// ControllerOptions are the options of the controllers that act on the host cluster.
type ControllerOptions struct {
	// Enabled is false if the server only serves the API.
	Enabled                     bool
	AdoptStorage                string
	AcceptRestoredState         bool
	LeaderElection              componentbaseconfig.LeaderElectionConfiguration
	Workers                     int
	Evictions                   eviction.Policy
	CompletedEvacuationTTL      time.Duration
	EvacuatorStartDeadline      time.Duration
	LongGrace                   time.Duration
	StallTimeout                time.Duration
	CompletedMaintenanceTTL     time.Duration
	AdvertisePlannedMaintenance bool
	ProtectHeldNodes            bool
	MaxUnavailableNodes         eviction.Percent
	LowerDeletionCost           bool
}

// The feature gates of a process are global and cannot be changed after they have been added to a
// flag set.
func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	codec := apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion)
	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(etcdPrefix, codec))
	// A watch cache keeps the last hundred states of all objects. Each state of a maintenance with
	// thousands of nodes takes megabytes of memory, and the kind has few watchers.
	etcd.WatchCacheSizes = []string{v1alpha1.Resource("nodemaintenances").String() + "#0"}
	etcd.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(v1alpha1.SchemeGroupVersion, schema.GroupKind{Group: v1alpha1.GroupName})
	serving := genericoptions.NewSecureServingOptions()
	// The aggregator multiplexes all users, with their watches, over a few connections.
	serving.HTTP2MaxStreamsPerConnection = 1000
	serving.BindPort = 8443
	// Do not write certificates to the working directory, which may be read-only.
	serving.ServerCert.CertDirectory, serving.ServerCert.PairName = "", ""
	run := genericoptions.NewServerRunOptions()
	run.ShutdownWatchTerminationGracePeriod = 5 * time.Second

	o := &Options{
		ServerRun:      run,
		Etcd:           etcd,
		SecureServing:  serving.WithLoopback(),
		Authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		Authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		Audit:          genericoptions.NewAuditOptions(),
		Features:       genericoptions.NewFeatureOptions(),
		Admission:      genericoptions.NewAdmissionOptions(),
		Traces:         genericoptions.NewTracingOptions(),
		Logs:           logs.NewOptions(),
		Metrics:        metrics.NewOptions(),
		Host:           HostOptions{QPS: 500, Burst: 1000},
		Storage:        StorageOptions{DataDir: defaultDataDir, QuotaBytes: embeddedetcd.DefaultQuotaBytes},
		Service:        ServiceOptions{Namespace: "haulout-system", Name: "haulout-apiserver"},
		Controllers: ControllerOptions{
			Enabled:                true,
			LeaderElection:         defaultLeaderElection(),
			Workers:                8,
			Evictions:              eviction.DefaultPolicy(),
			CompletedEvacuationTTL: 5 * time.Minute,
			LongGrace:              protocol.DefaultLongGrace,
			StallTimeout:           nodemaintenancecontroller.DefaultStallTimeout,
			EvacuatorStartDeadline: 5 * time.Minute,
			ProtectHeldNodes:       true,
			MaxUnavailableNodes:    protocol.DefaultMaxUnavailableNodes,
			LowerDeletionCost:      true,
		},
		Evacuators:      defaultEvacuators(),
		EvictionReviews: defaultEvictionReviews(),
	}
	admission.Configure(o.Admission, &o.NodeRights.Rules, func() []string { return o.Evacuators.BuiltIn })
	return o
}

func defaultLeaderElection() componentbaseconfig.LeaderElectionConfiguration {
	c := componentbaseconfig.LeaderElectionConfiguration{
		LeaderElect:  true,
		ResourceLock: "leases",
		ResourceName: "haulout-apiserver",
	}
	// The controllers stop within 6s after the last renewal, their calls are cancelled 4s later,
	// and other replicas wait 12s.
	c.LeaseDuration.Duration = 12 * time.Second
	c.RenewDeadline.Duration = 6 * time.Second
	c.RetryPeriod.Duration = 1500 * time.Millisecond
	return c
}

// Flags returns the flags in named sections.
func (o *Options) Flags() cliflag.NamedFlagSets {
	var fss cliflag.NamedFlagSets
	o.Host.addFlags(fss.FlagSet("host cluster"))
	o.Service.addFlags(fss.FlagSet("service"))
	o.Storage.addFlags(fss.FlagSet("embedded etcd"))
	o.Etcd.AddFlags(fss.FlagSet("etcd"))
	o.Controllers.addFlags(fss.FlagSet("controllers"))
	o.Evacuators.addFlags(fss.FlagSet("controllers"))
	o.SecureServing.AddFlags(fss.FlagSet("secure serving"))
	o.Authentication.AddFlags(fss.FlagSet("authentication"))
	o.Authorization.AddFlags(fss.FlagSet("authorization"))
	o.Audit.AddFlags(fss.FlagSet("auditing"))
	o.Admission.AddFlags(fss.FlagSet("admission"))
	o.NodeRights.addFlags(fss.FlagSet("admission"))
	o.EvictionReviews.addFlags(fss.FlagSet("admission"))
	o.Features.AddFlags(fss.FlagSet("features"))
	compatibility.DefaultComponentGlobalsRegistry.AddFlags(fss.FlagSet("features"))
	o.ServerRun.AddUniversalFlags(fss.FlagSet("generic"))
	o.Traces.AddFlags(fss.FlagSet("traces"))
	o.Metrics.AddFlags(fss.FlagSet("metrics"))
	logsapi.AddFlags(o.Logs, fss.FlagSet("logs"))

	fss.FlagSet("etcd").Lookup("etcd-servers").Usage = "etcd servers that store the objects (scheme://ip:port, separated by commas). " +
		"If empty, the server runs an etcd inside its process and allows only one replica."
	// Replace the help of the library: both flags are always optional here.
	for section, flag := range map[string]string{"authentication": "authentication-kubeconfig", "authorization": "authorization-kubeconfig"} {
		fss.FlagSet(section).Lookup(flag).Usage = "kubeconfig file of the cluster that answers these requests; the default is that of --kubeconfig."
	}
	tls := fss.FlagSet("secure serving")
	tls.Lookup("tls-cert-file").Usage = "File with the serving certificate, followed by its CA if any. If empty, the server creates a certificate, stores it in the Secret " +
		"haulout-apiserver-serving of its namespace, renews it, and updates the caBundle of its APIService."
	_ = tls.MarkHidden("cert-dir")
	// A server without the CA of the front proxy would treat every user as anonymous.
	_ = fss.FlagSet("authentication").MarkHidden("authentication-tolerate-lookup-failure")
	return fss
}

func (o *HostOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig file of the host cluster. If empty, the server uses the service account of its pod.")
	fs.Float32Var(&o.QPS, "kube-api-qps", o.QPS, "Maximum number of requests per second from this process to the host cluster. Previews, reviews of evictions, evictions, deletion costs and the Lease have limits of their own.")
	fs.IntVar(&o.Burst, "kube-api-burst", o.Burst, "Maximum burst of requests from this process to the host cluster, above --kube-api-qps.")
}

func (o *ServiceOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "Namespace of the server's Service, of the Secret with its serving certificate and of its Lease.")
	fs.StringVar(&o.Name, "service-name", o.Name, "Name of the Service in front of the server; its serving certificate is issued for it.")
}

func (o *StorageOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "Directory in which the server creates the private subdirectory data for the embedded etcd. Ignored with --etcd-servers.")
	fs.Int64Var(&o.QuotaBytes, "embedded-etcd-quota-bytes", o.QuotaBytes, "Size of the database at which the embedded etcd stops accepting writes, in bytes. "+
		"The maximum is a quarter of the volume; the server reduces a larger value to the maximum and logs that.")
}

func (o *NodeRightsOptions) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.EveryByName, "authorize-every-node-by-name", o.EveryByName, "Check the right to maintain each selected node by its name, even for users "+
		"who may maintain all nodes. Required with authorizers that deny individual nodes to such users. It does not apply to rights to a node pool.")
	fs.StringVar(&o.PoolLabel, "pool-label", o.PoolLabel, "Key of the node label whose value is the pool of the node. The verb maintain on nodepools of "+
		v1alpha1.GroupName+" with this value as resource name allows the maintenance of the nodes of the pool, except control-plane nodes. "+
		"The prefix must be "+nodeRestriction+", since kubelets may change other labels. If empty, there are no pools.")
	fs.BoolVar(&o.PoolLabelWritableByNodes, "pool-label-writable-by-nodes", o.PoolLabelWritableByNodes, "Accept a --pool-label that a kubelet can change "+
		"on its own node. A user who controls a node can then choose who may maintain it.")
}

// nodeRestriction is the prefix of the labels that the admission plugin NodeRestriction of
// kube-apiserver does not let kubelets change.
const nodeRestriction = corev1.LabelNamespaceNodeRestriction + "/"

func (o *NodeRightsOptions) validate() []error {
	if o.PoolLabel == "" {
		return nil
	}
	var errs []error
	for _, msg := range validation.IsQualifiedName(o.PoolLabel) {
		errs = append(errs, fmt.Errorf("--pool-label is %q: must be the key of a label: %s", o.PoolLabel, msg))
	}
	if len(errs) == 0 && !strings.HasPrefix(o.PoolLabel, nodeRestriction) && !o.PoolLabelWritableByNodes {
		errs = append(errs, fmt.Errorf("--pool-label is %q: must begin with %s, because a kubelet may change other labels of its node, and with them who may maintain it; "+
			"if only users whom you trust can do that in your cluster, set --pool-label-writable-by-nodes", o.PoolLabel, nodeRestriction))
	}
	return errs
}

func (o *ControllerOptions) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "controllers", o.Enabled, "Run the controllers that cordon nodes and evacuate pods. If false, the server only serves the API.")
	fs.IntVar(&o.Workers, "concurrent-syncs", o.Workers, "Number of objects of each kind that a controller reconciles at the same time.")
	fs.IntVar(&o.Evictions.MaxConcurrent, "max-concurrent-evictions", o.Evictions.MaxConcurrent, "Maximum number of calls of the Eviction API that are in flight "+
		"at the same time, for all pods together. The server makes fewer calls while kube-apiserver is overloaded.")
	fs.DurationVar(&o.Evictions.DeniedAfter, "denied-after", o.Evictions.DeniedAfter, "How long an admission webhook or policy may refuse the eviction "+
		"of a pod before the pod is reported as blocked (EvictionDenied).")
	fs.Var(&o.Evictions.UnprotectedMaxUnavailable, "unprotected-max-unavailable", "Percentage of the pods of a workload without a PodDisruptionBudget "+
		"that may be unavailable while its pods are evicted, but at least one pod. 100% evicts all of them at the same time.")
	fs.DurationVar(&o.Evictions.UnprotectedPatience, "unprotected-patience", o.Evictions.UnprotectedPatience, "How long after an eviction the next pods "+
		"of a workload without a PodDisruptionBudget are evicted even if other pods of the workload are still unavailable.")
	fs.DurationVar(&o.CompletedEvacuationTTL, "completed-evacuation-ttl", o.CompletedEvacuationTTL, "How long an Evacuation is kept after its pod has left.")
	fs.DurationVar(&o.EvacuatorStartDeadline, "evacuator-start-deadline", o.EvacuatorStartDeadline,
		"How long an evacuator may take to report for the first time before the next evacuator becomes active, if no evacuator of its class has reported since "+
			"this leader started. Otherwise, the Evacuation's progressDeadlineSeconds applies, which also limits this time. "+
			"A pod can request a longer time with the annotation "+v1alpha1.AnnotationEvacuatorStartDeadline+".")
	fs.DurationVar(&o.LongGrace, "long-grace", o.LongGrace,
		"How long a pod may take to stop within its grace period before it is reported as blocked (LongGracePeriod) and no longer counts as progress.")
	fs.DurationVar(&o.StallTimeout, "stall-timeout", o.StallTimeout,
		"How long a drain may make no progress before its NodeMaintenance is reported as stalled (condition Progressing). It must exceed --surge-timeout, "+
			"--unprotected-patience, --denied-after, --volume-detach-timeout and --daemonset-budget-patience.")
	fs.DurationVar(&o.CompletedMaintenanceTTL, "completed-maintenance-ttl", o.CompletedMaintenanceTTL,
		"How long a completed NodeMaintenance is kept before it is deleted, at least 1m. 0 keeps it forever.")
	fs.BoolVar(&o.AdvertisePlannedMaintenance, "advertise-planned-maintenance", o.AdvertisePlannedMaintenance,
		"Set the condition MaintenancePlanned on the nodes that a NodeMaintenance in stage Idle selects and its requester may maintain. If false, such a NodeMaintenance changes no node.")
	fs.BoolVar(&o.ProtectHeldNodes, "protect-held-nodes", o.ProtectHeldNodes,
		"Annotate the nodes that a NodeMaintenance in stage Cordon or Drain holds, so that cluster-autoscaler and Karpenter do not delete them. "+
			"If false, autoscalers may delete a drained node.")
	fs.Var(&o.MaxUnavailableNodes, "max-unavailable-nodes", "Percentage of all nodes of the cluster, rounded down but at least one node, that may be out of service "+
		"when a rollout takes further ones. It counts all nodes that are out, for whatever reason. Each rollout has limits of its own in addition.")
	fs.BoolVar(&o.LowerDeletionCost, "lower-deletion-cost", o.LowerDeletionCost,
		"Lower the deletion cost of pods of ReplicaSets that wait for their replacement or eviction, so that a scale-down deletes them first. "+
			"If false, the server only restores the costs that it has lowered before.")
	fs.StringVar(&o.AdoptStorage, "adopt-storage", o.AdoptStorage,
		"ID (a UUID) of another storage that is permanently lost: the controllers take over its Lease and release the nodes of its maintenances. "+
			"If empty, the controllers do not run while the Lease belongs to another storage.")
	fs.BoolVar(&o.AcceptRestoredState, "accept-restored-state", o.AcceptRestoredState,
		"Run the controllers even if the storage was restored from a backup. Maintenances that were completed after the backup start again, and NodeTasks are deleted.")
	le := &o.LeaderElection
	fs.BoolVar(&le.LeaderElect, "leader-elect", le.LeaderElect, "Run the controllers only on the replica that holds the Lease. Required with several replicas.")
	fs.StringVar(&le.ResourceName, "leader-elect-resource-name", le.ResourceName, "Name of the Lease, in the server's namespace of the host cluster.")
	fs.DurationVar(&le.LeaseDuration.Duration, "leader-elect-lease-duration", le.LeaseDuration.Duration, "How long other replicas wait before they take over from a leader that does not renew its Lease. "+
		"Must be greater than --leader-elect-renew-deadline plus 5s, the time in which the old leader stops.")
	fs.DurationVar(&le.RenewDeadline.Duration, "leader-elect-renew-deadline", le.RenewDeadline.Duration, "How long a leader that cannot renew its Lease waits before it stops its controllers.")
	fs.DurationVar(&le.RetryPeriod.Duration, "leader-elect-retry-period", le.RetryPeriod.Duration, "How long to wait between attempts to acquire or renew the Lease.")
}

// CompletedOptions are options with all derived values. Only Complete returns them.
type CompletedOptions struct {
	*completedOptions
}

type completedOptions struct {
	*Options
	// Embedded is set if the server runs its own etcd.
	Embedded bool
	// SelfManagedCert is set if the server issues and renews its own serving certificate.
	SelfManagedCert bool
}

// Complete sets the options that are derived from other options.
func (o *Options) Complete() CompletedOptions {
	completed := &completedOptions{
		Options:         o,
		Embedded:        len(o.Etcd.StorageConfig.Transport.ServerList) == 0,
		SelfManagedCert: o.SecureServing.ServerCert.CertKey.CertFile == "" && o.SecureServing.ServerCert.CertKey.KeyFile == "",
	}
	o.Authentication.RemoteKubeConfigFile = cmp.Or(o.Authentication.RemoteKubeConfigFile, o.Host.Kubeconfig)
	o.Authorization.RemoteKubeConfigFile = cmp.Or(o.Authorization.RemoteKubeConfigFile, o.Host.Kubeconfig)
	if o.ServerRun.AdvertiseAddress == nil {
		o.ServerRun.AdvertiseAddress = net.IPv4(127, 0, 0, 1)
	}
	return CompletedOptions{completed}
}

// Validate returns the errors of the options. Each names its flag.
func (o CompletedOptions) Validate() error {
	var errs []error
	if !o.Embedded {
		errs = append(errs, o.Etcd.Validate()...)
	}
	errs = append(errs, o.ServerRun.Validate()...)
	errs = append(errs, o.SecureServing.Validate()...)
	errs = append(errs, o.Authentication.Validate()...)
	errs = append(errs, o.Authorization.Validate()...)
	errs = append(errs, o.Audit.Validate()...)
	errs = append(errs, o.Features.Validate()...)
	errs = append(errs, o.Admission.Validate()...)
	errs = append(errs, o.Traces.Validate()...)
	errs = append(errs, o.Metrics.Validate()...)
	errs = append(errs, compatibility.DefaultComponentGlobalsRegistry.Validate()...)
	if o.SecureServing.BindPort == 0 && o.SecureServing.Listener == nil {
		errs = append(errs, errors.New("--secure-port must not be 0: the server has only this port"))
	}
	if o.Embedded && o.Storage.DataDir == "" {
		errs = append(errs, errors.New("--data-dir must not be empty without --etcd-servers"))
	}
	if o.Storage.QuotaBytes < embeddedetcd.MinQuotaBytes {
		errs = append(errs, fmt.Errorf("--embedded-etcd-quota-bytes is %d: must be at least %d (16 MiB)", o.Storage.QuotaBytes, embeddedetcd.MinQuotaBytes))
	}
	for flag, name := range map[string]string{"namespace": o.Service.Namespace, "service-name": o.Service.Name} {
		for _, msg := range validation.IsDNS1123Label(name) {
			errs = append(errs, fmt.Errorf("--%s %q: %s", flag, name, msg))
		}
	}
	errs = append(errs, o.Host.validate()...)
	errs = append(errs, o.NodeRights.validate()...)
	errs = append(errs, o.EvictionReviews.validate()...)
	errs = append(errs, o.Controllers.validate()...)
	errs = append(errs, o.Evacuators.validate()...)
	errs = append(errs, o.validateDurations()...)
	return errors.Join(errs...)
}

// validateDurations checks the minimums. It also checks that the stall timeout is longer than each
// timeout during which a drain may wait, since otherwise a waiting drain would be reported as
// stalled.
func (o *Options) validateDurations() []error {
	c, e := &o.Controllers, &o.Evacuators
	var errs []error
	for _, d := range []struct {
		flag           string
		value, atLeast time.Duration
		drainWaits     bool
	}{
		{"completed-evacuation-ttl", c.CompletedEvacuationTTL, time.Second, false},
		{"unprotected-patience", c.Evictions.UnprotectedPatience, time.Second, true},
		{"denied-after", c.Evictions.DeniedAfter, 0, true},
		{"long-grace", c.LongGrace, time.Second, false},
		{"evacuator-start-deadline", c.EvacuatorStartDeadline, time.Second, false},
		{"surge-timeout", e.SurgeTimeout, time.Second, true},
		{"volume-detach-timeout", e.VolumeDetachTimeout, time.Second, true},
		{"daemonset-budget-patience", e.DaemonSetBudgetPatience, time.Second, true},
	} {
		if d.value < d.atLeast {
			errs = append(errs, fmt.Errorf("--%s is %v: must be at least %v", d.flag, d.value, d.atLeast))
		}
		if d.drainWaits && c.StallTimeout <= d.value {
			errs = append(errs, fmt.Errorf("--stall-timeout is %v: must be greater than --%s (%v)", c.StallTimeout, d.flag, d.value))
		}
	}
	return errs
}

func (o *HostOptions) validate() []error {
	var errs []error
	if o.QPS <= 0 {
		errs = append(errs, fmt.Errorf("--kube-api-qps is %v: must be greater than 0", o.QPS))
	}
	if o.Burst < 1 {
		errs = append(errs, fmt.Errorf("--kube-api-burst is %d: must be at least 1", o.Burst))
	}
	return errs
}

func (o *ControllerOptions) validate() []error {
	var errs []error
	for flag, n := range map[string]int{"concurrent-syncs": o.Workers, "max-concurrent-evictions": o.Evictions.MaxConcurrent} {
		if n < 1 {
			errs = append(errs, fmt.Errorf("--%s is %d: must be at least 1", flag, n))
		}
	}
	if o.CompletedMaintenanceTTL != 0 && o.CompletedMaintenanceTTL < time.Minute {
		errs = append(errs, fmt.Errorf("--completed-maintenance-ttl is %v: must be 0 (no deletion) or at least 1m", o.CompletedMaintenanceTTL))
	}
	if o.AdoptStorage != "" && !storageID.MatchString(o.AdoptStorage) {
		errs = append(errs, fmt.Errorf("--adopt-storage is %q: must be the ID of a storage, a UUID in lower case", o.AdoptStorage))
	}
	le := o.LeaderElection
	if le.RetryPeriod.Duration <= 0 || le.RenewDeadline.Duration <= le.RetryPeriod.Duration*6/5 {
		errs = append(errs, fmt.Errorf("--leader-elect-retry-period is %v: must be greater than 0, and --leader-elect-renew-deadline (%v) "+
			"must be more than 1.2 times this period", le.RetryPeriod.Duration, le.RenewDeadline.Duration))
	}
	if least := le.RenewDeadline.Duration + apiserver.StopTimeout; le.LeaseDuration.Duration <= least {
		errs = append(errs, fmt.Errorf("--leader-elect-lease-duration is %v: must be greater than --leader-elect-renew-deadline and %v together (%v), "+
			"so that a leader that cannot renew has stopped before another one starts", le.LeaseDuration.Duration, apiserver.StopTimeout, least))
	}
	return errs
}
