// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

// Reasons of the events about leadership.
const (
	// EventControllersOff: this server does not run its controllers; the message has the cause and
	// a remedy. About the Lease.
	EventControllersOff = "ControllersOff"
)

// offReason is the reason why a replica must not lead, even if the Lease is free.
type offReason string

const (
	// offElsewhere: the APIService refers to another Service, so users do not see the objects in
	// this server.
	offElsewhere offReason = "APIServiceElsewhere"
	// offOtherStorage: the previous leader had a different storage, which may have maintenances
	// that this one does not have.
	offOtherStorage offReason = "OtherStorage"
	// offRestored: the storage was restored from a backup, so it may have maintenances that were
	// completed after the backup.
	offRestored offReason = "RestoredStorage"
	// offCheckFails: the check itself fails, for example because the server may not read the
	// APIService or the Lease, or because its storage does not respond.
	offCheckFails offReason = "CheckFails"
)

var offReasons = []offReason{offElsewhere, offOtherStorage, offRestored, offCheckFails}

const (
	// checkTimeout limits one check, so that a check that hangs fails.
	checkTimeout = 10 * time.Second
	// failsAfter is the time for which the check must fail before an event reports the failure: a
	// restart of kube-apiserver needs no event.
	failsAfter = time.Minute
)

var (
	controllersOff = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Name: "controllers_off",
		Help:           "1 while this replica must not run the controllers for a reason that an administrator has to resolve, otherwise 0.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})

	leaderGauge = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Name: "leader",
		Help:           "1 while this replica runs the controllers, otherwise 0. The sum over all replicas is 1.",
		StabilityLevel: metrics.ALPHA,
	})

	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(controllersOff, leaderGauge)
		setControllersOff("")
	})
)

// setControllersOff sets the metric controllers_off to 1 for one reason and to 0 for all others. It
// sets each value from the start, because an alert on a metric that does not exist never fires.
func setControllersOff(why offReason) {
	for _, r := range offReasons {
		value := 0.0
		if r == why {
			value = 1
		}
		controllersOff.WithLabelValues(string(r)).Set(value)
	}
}

// gate has the result of the last check whether this replica may lead.
type gate struct {
	mu sync.Mutex
	// off is the reason why this replica may not lead, according to the last check; nil if it may
	// lead. It is read without the lock, because a check that hangs holds the lock.
	off atomic.Pointer[string]
	// outdated is why the storage may be older than the cluster, "" if it is not; nil as long as
	// the storage was not compared with the Lease. It is read without the lock, too.
	outdated atomic.Pointer[string]
	// told is the last message that was logged and recorded as an event.
	told string
	// failing is the time since which every check has failed; zero if the last check succeeded.
	failing time.Time
	// holder is another holder of the Lease, and renewal is its last renewal time, from the clock
	// of the holder. The gate only compares it with earlier values: if it changes, the holder is
	// alive.
	holder, renewal string
}

// mayLead reports whether this replica may take part in the election. It returns false if the check
// fails.
func (c *Controllers) mayLead(ctx context.Context) bool {
	why, err := c.whyOff(ctx)
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot check whether this replica may lead, the controllers wait")
		c.noteFailing(ctx, err)
	}
	return err == nil && why == ""
}

// mustNotLead reports whether a replica that takes part in the election must leave it. It returns
// false if the check fails.
func (c *Controllers) mustNotLead(ctx context.Context) bool {
	why, err := c.whyOff(ctx)
	return err == nil && why != ""
}

// whyOff returns the reason why this replica must not lead; empty if it may lead. If the reason has
// changed, whyOff reports it in the log, in an event and in a metric.
func (c *Controllers) whyOff(ctx context.Context) (offReason, error) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	checking, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	why, message, err := c.askWhyOff(checking)
	if err != nil {
		return "", err
	}
	c.gate.failing = time.Time{}
	c.setOff(ctx, why, message)
	return why, nil
}

// noteFailing reports that the check before an election has failed: in a metric immediately, and in
// an event after failsAfter.
func (c *Controllers) noteFailing(ctx context.Context, err error) {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	if c.gate.failing.IsZero() {
		c.gate.failing = time.Now()
	}
	if time.Since(c.gate.failing) < failsAfter {
		setControllersOff(offCheckFails)
		return
	}
	c.setOff(ctx, offCheckFails, "the check whether this server may lead fails: "+err.Error())
}

// setOff stores the reason why this replica may not lead, and reports a changed reason. The caller
// has locked the gate.
func (c *Controllers) setOff(ctx context.Context, why offReason, message string) {
	setControllersOff(why)
	c.gate.off.Store(nil)
	if why != "" {
		text := string(why) + ": " + message
		c.gate.off.Store(&text)
	}
	if message == c.gate.told {
		return
	}
	c.gate.told = message
	if why == "" {
		klog.FromContext(ctx).Info("Controllers may run")
		return
	}
	klog.FromContext(ctx).Info("Controllers are off", "reason", why, "message", message)
	if c.Recorder != nil {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Election.Namespace, Name: c.Election.Name}}
		c.Recorder.Eventf(lease, nil, corev1.EventTypeWarning, EventControllersOff, "Lead", "%s: %s", why, message)
	}
}

// checkReady returns an error with the reason why this replica may not lead; nil if it leads,
// follows or may lead.
func (c *Controllers) checkReady() error {
	if off := c.gate.off.Load(); off != nil {
		return errors.New(*off)
	}
	return nil
}

// Outdated returns why the storage may be older than the cluster; "" if it is not, or if there is
// no Lease. Such a storage may offer nodes that have returned to service. It stays outdated until a
// leader has taken it over.
func (c *Controllers) Outdated() string {
	if !c.Election.Enabled || c.Storage == nil {
		return ""
	}
	if text := c.gate.outdated.Load(); text != nil {
		return *text
	}
	return "the server has not compared its storage with its Lease yet"
}

func (c *Controllers) askWhyOff(ctx context.Context) (why offReason, message string, err error) {
	// Read the Lease first, so that a replica that may not lead still reports whether another
	// replica leads.
	lease, err := c.readLease(ctx)
	if err != nil {
		return "", "", err
	}
	if c.Registered != nil {
		registered, err := c.Registered(ctx)
		if err != nil {
			return "", "", fmt.Errorf("read the Service of the APIService: %w", err)
		}
		if registered != c.Service {
			named := "no Service"
			if registered != (types.NamespacedName{}) {
				named = "Service " + registered.String()
			}
			return offElsewhere, fmt.Sprintf("the APIService of the group refers to Service %s and not to %s, which is in front of this server: "+
				"change the APIService, or remove this server", named, c.Service), nil
		}
	}
	if lease == nil || c.Storage == nil {
		c.setOutdated("")
		return "", "", nil
	}
	if holder := c.liveHolder(lease); holder != "" && c.Storage.Embedded {
		c.Exit(fmt.Errorf("another server (%s) renews Lease %s/%s: embedded storage allows only one server; "+
			"set the same --etcd-servers on all servers, or stop the other server", holder, c.Election.Namespace, c.Election.Name))
	}
	other := c.Storage.other(lease)
	if other != "" {
		c.setOutdated(fmt.Sprintf("the last leader had storage %s, and this server has storage %s", other, c.Storage.ID))
	}
	if id, foreign := c.Storage.foreign(lease); foreign {
		return offOtherStorage, fmt.Sprintf("the last leader had storage %s, and this server has storage %s: nodes may be under maintenances that only exist in the "+
			"other storage. Restore that storage, or start with --adopt-storage=%s to release the nodes of its maintenances", id, c.Storage.ID, id), nil
	}
	// Read the storage after the Lease, so that the storage does not seem older than the Lease
	// because a leader continues to write.
	now, err := c.Storage.state(ctx)
	if err != nil {
		return "", "", err
	}
	known, restored := c.Storage.restored(lease, now)
	switch {
	case restored:
		c.setOutdated(fmt.Sprintf("storage %s was restored from a backup", c.Storage.ID))
	case other == "":
		c.setOutdated("")
	}
	if restored && !c.Storage.AcceptRestored {
		return offRestored, fmt.Sprintf("storage %s has revision %d and had %d before: it was restored from a backup and may have maintenances that "+
			"were completed after the backup. Complete or delete these, then start with --accept-restored-state", c.Storage.ID, now.revision, known), nil
	}
	return "", "", nil
}

func (c *Controllers) setOutdated(text string) { c.gate.outdated.Store(&text) }

// readLease returns the Lease; nil if it does not exist.
func (c *Controllers) readLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := c.Leases.Leases(c.Election.Namespace).Get(ctx, c.Election.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.sightings.noteAbsent()
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Lease %s/%s: %w", c.Election.Namespace, c.Election.Name, err)
	}
	c.sightings.note(lease)
	return lease, nil
}

// liveHolder returns the holder of a Lease if it is another replica that has renewed the Lease
// since the last call.
func (c *Controllers) liveHolder(lease *coordinationv1.Lease) string {
	holder, renewal := "", ""
	if h := lease.Spec.HolderIdentity; h != nil && *h != c.Election.Identity && lease.Spec.RenewTime != nil {
		holder, renewal = *h, lease.Spec.RenewTime.String()
	}
	alive := holder != "" && c.gate.holder == holder && c.gate.renewal != renewal
	c.gate.holder, c.gate.renewal = holder, renewal
	if !alive {
		return ""
	}
	return holder
}
