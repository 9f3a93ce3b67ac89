// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster makes the API requests of a node's shutdown: about its NodeMaintenance, about the
// conditions and events of its Node, and about the status of pods that ended without the API.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
)

// component is the name of the agent in events.
const component = "haulout-node-agent"

// Config has the dependencies of a Client.
type Config struct {
	// NodeName is the name of the node.
	NodeName string
	// REST is the configuration of the API client. Kubernetes serves Haulout's API as well. The
	// client must allow many requests per second: after an API outage, the agent reports every pod
	// of the node.
	REST *rest.Config
	// Recorder records events, see NewRecorder.
	Recorder record.EventRecorder
}

// Client implements shutdown.Cluster.
type Client struct {
	node         string
	host         kubernetes.Interface
	maintenances maintenanceclient.NodeMaintenanceInterface
	recorder     record.EventRecorder
	// shared is used by all copies of a Client.
	shared *shared
}

// shared is the common state of the copies of a Client.
type shared struct {
	rest *rest.Config

	mu   sync.Mutex
	user string
	// failed is set if the last request of a shutdown failed. attempts counts the requests after a
	// failure.
	failed   bool
	attempts int
}

var _ shutdown.Cluster = &Client{}

// New returns a Client.
func New(config Config) (*Client, error) {
	if config.NodeName == "" || config.REST == nil || config.Recorder == nil {
		return nil, errors.New("the name of the node, an API configuration and a recorder are required")
	}
	c := &Client{node: config.NodeName, recorder: config.Recorder, shared: &shared{rest: listening(config.REST)}}
	httpClient, err := rest.HTTPClientFor(c.shared.rest)
	if err != nil {
		return nil, err
	}
	return c, c.useConnection(c.shared.rest, httpClient)
}

func (c *Client) useConnection(config *rest.Config, httpClient *http.Client) error {
	host, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return err
	}
	maintenance, err := versioned.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return err
	}
	c.host, c.maintenances = host, maintenance.MaintenanceV1alpha1().NodeMaintenances()
	return nil
}

// NewRecorder returns a recorder that writes events until the context ends.
func NewRecorder(ctx context.Context, host kubernetes.Interface, node string) record.EventRecorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: host.CoreV1().Events("")})
	broadcaster.StartStructuredLogging(3)
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: node})
}

// maxEventMessage is the maximum length of the message of an event, in bytes, that the API accepts.
const maxEventMessage = 1024

// Event records an event about the node, with its message in one line.
func (c *Client) Event(eventType, reason, message string) {
	// Set the UID to the name, as the kubelet does: kubectl describe node finds events by it.
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.node, UID: types.UID(c.node)}
	c.recorder.Event(ref, eventType, reason, protocol.OneLine(message, maxEventMessage))
}

func (c *Client) ownUser(ctx context.Context) (string, error) {
	c.shared.mu.Lock()
	user := c.shared.user
	c.shared.mu.Unlock()
	if user != "" {
		return user, nil
	}
	review, err := c.host.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("read the own user name: %w", err)
	}
	user = review.Status.UserInfo.Username
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.shared.user = user
	return user, nil
}

// refused wraps an error with shutdown.ErrRefused if the API server would refuse the same request
// again.
func refused(err error) error {
	switch {
	case answer.APIMissing(err):
		return fmt.Errorf("%w: Haulout is not installed in the cluster: %w", shutdown.ErrRefused, err)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsUnauthorized(err),
		apierrors.IsMethodNotSupported(err):
		return fmt.Errorf("%w: %w", shutdown.ErrRefused, err)
	}
	return err
}
