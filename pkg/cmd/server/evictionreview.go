// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/admission/evictionreview"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apiserver"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/host/owners"
)

const (
	// interceptAnnotated and interceptAll are the values of --intercept-evictions.
	interceptAnnotated, interceptAll = "Annotated", "All"

	// leastRawEvictionTTL and mostRawEvictionTTL limit --raw-eviction-ttl. Clients that evict pods
	// wait for up to a minute between two attempts.
	leastRawEvictionTTL, mostRawEvictionTTL = 3 * time.Minute, 24 * time.Hour

	// reviewQPS and reviewBurst limit the requests of reviews to the host cluster, separately from
	// those of the controllers: a client that evicts pods in a loop must not slow down a drain.
	reviewQPS, reviewBurst = 400, 1200
)

// EvictionReviewOptions configure what happens to evictions that kube-apiserver sends for a review.
// The help of the flags describes the fields.
type EvictionReviewOptions struct {
	Intercept      string
	RawEvictionTTL time.Duration
}

func defaultEvictionReviews() EvictionReviewOptions {
	return EvictionReviewOptions{Intercept: interceptAnnotated, RawEvictionTTL: protocol.DefaultRawEvictionTTL}
}

func (o *EvictionReviewOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Intercept, "intercept-evictions", o.Intercept, fmt.Sprintf("Pods whose evictions by other clients become Evacuations, if artifacts/eviction-interception is installed: "+
		"%s, pods whose annotations name an evacuator, or %s, also pods of Deployments, which are replaced first.", interceptAnnotated, interceptAll))
	fs.DurationVar(&o.RawEvictionTTL, "raw-eviction-ttl", o.RawEvictionTTL, fmt.Sprintf("How long an Evacuation that was made for an eviction is kept after the last eviction of its pod, from %v to %v. "+
		"Then it is cancelled, unless another instigator requests it.", leastRawEvictionTTL, mostRawEvictionTTL))
}

func (o *EvictionReviewOptions) validate() []error {
	var errs []error
	if o.Intercept != interceptAnnotated && o.Intercept != interceptAll {
		errs = append(errs, fmt.Errorf("--intercept-evictions is %q: must be %s or %s", o.Intercept, interceptAnnotated, interceptAll))
	}
	if o.RawEvictionTTL < leastRawEvictionTTL || o.RawEvictionTTL > mostRawEvictionTTL {
		errs = append(errs, fmt.Errorf("--raw-eviction-ttl is %v: must be from %v to %v", o.RawEvictionTTL, leastRawEvictionTTL, mostRawEvictionTTL))
	}
	return errs
}

// applyEvictionReviews lets the server answer the reviews of evictions. They are not a resource of
// the API: the admission chain of the API, with the webhooks of the cluster, must not run for them.
func (o CompletedOptions) applyEvictionReviews(generic *genericapiserver.RecommendedConfig, cluster *hostCluster, controllers *apiserver.Controllers, recorder events.EventRecorder) error {
	config := rest.CopyConfig(cluster.config)
	config.QPS, config.Burst, config.RateLimiter = reviewQPS, reviewBurst, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	own, err := clientset.NewForConfig(loopbackConfig(generic, "haulout-evictionreviews"))
	if err != nil {
		return err
	}
	reviews := &evictionreview.Handler{
		Host: client, Evacuations: own.MaintenanceV1alpha1(), Recorder: recorder, TTL: o.EvictionReviews.RawEvictionTTL, Clock: clock.RealClock{},
		NoLeader:    func() string { return "this replica of haulout-apiserver runs without controllers" },
		LeaderSince: time.Now,
	}
	if controllers != nil {
		reviews.NoLeader, reviews.LeaderSince = controllers.NoKnownLeader, controllers.LeaderSince
	}
	if o.EvictionReviews.Intercept == interceptAll {
		reviews.BuiltIn = owners.NewBuiltIn(client, sets.New(o.Evacuators.BuiltIn...)).Of
	}
	generic.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(reviews.Before(api), c)
	}
	return nil
}
