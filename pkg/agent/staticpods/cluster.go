// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Cluster identifies the cluster of a node. Each part may be unknown.
type Cluster struct {
	// Namespace is the UID of the namespace kube-system; Node is the UID of the Node.
	Namespace types.UID `json:"namespace,omitempty"`
	Node      types.UID `json:"node,omitempty"`
	// CAs are checksums of the public keys of the CAs that the kubelet trusts.
	CAs []string `json:"cas,omitempty"`
}

// membership is the knowledge whether a manifest was parked in the cluster to which the node
// belongs now.
type membership int

const (
	// memberUnknown: there is not enough information, so the manifest stays in place.
	memberUnknown membership = iota
	memberSame
	memberForeign
)

// membershipOf compares the cluster in which a manifest was parked with the present cluster. A
// recreated Node or a rotated CA changes only one part; in another cluster, all parts differ.
func membershipOf(parked *Cluster, now *Cluster) membership {
	switch {
	case parked == nil || now == nil:
		return memberUnknown
	case parked.Namespace != "" && now.Namespace != "":
		if parked.Namespace == now.Namespace {
			return memberSame
		}
		return memberForeign
	case parked.Node != "" && parked.Node == now.Node:
		return memberSame
	case slices.ContainsFunc(parked.CAs, func(ca string) bool { return slices.Contains(now.CAs, ca) }):
		return memberSame
	case now.Node == "":
		return memberUnknown // the API has not responded yet
	}
	return memberForeign
}

// cluster returns the known parts of the present cluster.
func (k *Keeper) cluster(ctx context.Context) *Cluster {
	c := &Cluster{}
	if bundle, err := k.CA(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read the CA certificates of the kubelet")
	} else {
		c.CAs = keysOf(bundle)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c.Namespace = k.namespace
	if k.seen != nil {
		c.Node = k.seen.UID
	}
	return c
}

// keysOf returns checksums of the public keys of a bundle of certificates.
func keysOf(bundle []byte) []string {
	var keys []string
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
			keys = append(keys, hex.EncodeToString(sum[:]))
		}
	}
	return keys
}

// findNamespace reads the UID of kube-system, which never changes in a cluster. The agent may not
// have the right to read it.
func (k *Keeper) findNamespace(ctx context.Context) {
	k.mu.Lock()
	known := k.namespace != ""
	k.mu.Unlock()
	if known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	namespace, err := k.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The UID of the namespace kube-system is unknown", "reason", err.Error())
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.namespace = namespace.UID
}

// isRefuted reports whether the CAs show that a manifest was not parked in the present cluster. The
// Keeper uses it until the API has responded.
func isRefuted(parked *Cluster, now *Cluster) bool {
	return parked != nil && len(parked.CAs) > 0 && len(now.CAs) > 0 && membershipOf(parked, now) != memberSame
}

// sortByCluster adds the cluster to entries of an older version. It sets aside the manifests of
// another cluster, which exist on a node that was reset and has joined another cluster. An entry
// without a cluster belongs to the present one, unless it is older than the Node.
func (k *Keeper) sortByCluster(ctx context.Context, entries []Entry) {
	now := k.cluster(ctx)
	if now.Node == "" {
		return
	}
	k.mu.Lock()
	created := k.seen.CreationTimestamp.Time
	k.mu.Unlock()
	stamp := func(e *Entry) {
		switch {
		case e.Cluster != nil: // the entry belongs to another manifest of the pod
		case e.ParkedAt.Before(created):
			e.Cluster = &Cluster{}
		default:
			e.Cluster = now
		}
	}
	for i := range entries {
		if entries[i].Cluster == nil {
			if err := k.folder.change(entries[i].Pod(), stamp); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot update the index", "pod", klog.KRef(entries[i].Namespace, entries[i].Name))
			}
		}
	}
	done, err := k.folder.setAside(func(e *Entry) bool { return membershipOf(e.Cluster, now) == memberForeign })
	k.note(ctx, troubleForeign, err)
	for _, e := range done {
		k.Event(corev1.EventTypeWarning, EventForeign, fmt.Sprintf(
			"Static pod %s/%s was parked in another cluster; its manifest is %s, restore it with: haulout-node-agent static restore --foreign",
			e.Namespace, e.Name, e.Archived))
	}
}

// setAside moves the selected manifests to the folder for other clusters.
func (f *folder) setAside(selected func(*Entry) bool) ([]Restored, error) {
	i, unlock, err := f.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var done []Restored
	var errs []error
	for _, e := range slices.Clone(i.Entries) {
		if !selected(e) {
			continue
		}
		target, err := f.archive(i, e, foreignName)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, Restored{*e, target})
	}
	if len(done) > 0 {
		errs = append(errs, f.syncAll(done), f.save(i))
	}
	return done, errors.Join(errs...)
}
