// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package servingcert manages the server's own serving certificate: it stores a CA and a leaf in a
// Secret of the host cluster, renews them before they expire, and sets the caBundle of our
// APIService for the aggregator.
package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/clock"
)

const (
	// SecretName is the Secret with the CA and the leaf.
	SecretName = "haulout-apiserver-serving"

	keyCABundle = "ca.crt" // the newest certificate first; older ones stay until they expire
	keyCAKey    = "ca.key"
	keyCert     = corev1.TLSCertKey
	keyKey      = corev1.TLSPrivateKeyKey
)

// periods has the lifetimes of the certificates and the interval at which a replica checks them.
type periods struct {
	ca, leaf time.Duration
	// check is the interval at which a replica checks whether another replica has renewed a
	// certificate, and whether another client has changed the caBundle.
	check time.Duration
}

var shipped = periods{ca: 10 * 365 * 24 * time.Hour, leaf: 90 * 24 * time.Hour, check: time.Minute}

// Options define the names in the certificate, and the APIService.
type Options struct {
	// Namespace and Service identify the Service in front of the server.
	Namespace, Service string
	// APIService is the name of the APIService whose caBundle the manager sets.
	APIService string
}

// Manager is a dynamiccertificates.CertKeyContentProvider that renews its certificate.
type Manager struct {
	options    Options
	secrets    kubernetes.Interface
	aggregator aggregator.Interface
	clock      clock.WithTicker
	periods    periods
	// announced is the caBundle that the last check found in the APIService or wrote to it.
	announced []byte

	mu        sync.RWMutex
	current   material
	listeners []dynamiccertificates.Listener
}

var (
	_ dynamiccertificates.CertKeyContentProvider = &Manager{}
	_ dynamiccertificates.Notifier               = &Manager{}
	_ dynamiccertificates.ControllerRunner       = &Manager{}
)

// New creates a manager. It has no certificate before RunOnce.
func New(o Options, host kubernetes.Interface, agg aggregator.Interface, c clock.WithTicker) *Manager {
	return &Manager{options: o, secrets: host, aggregator: agg, clock: c, periods: shipped}
}

// Name is the name of the certificate in logs.
func (m *Manager) Name() string { return "self-managed serving certificate" }

// CurrentCertKeyContent returns the leaf and its key, PEM-encoded.
func (m *Manager) CurrentCertKeyContent() ([]byte, []byte) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.current.cert, m.current.key
}

// AddListener adds a listener that is called after each renewal.
func (m *Manager) AddListener(l dynamiccertificates.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, l)
}

// RunOnce loads the certificate, creates or renews it if necessary, and sets the caBundle.
func (m *Manager) RunOnce(ctx context.Context) error {
	next, err := m.ensureSecret(ctx)
	if err != nil {
		return fmt.Errorf("maintain the serving certificate in Secret %s/%s (--tls-cert-file replaces it): %w", m.options.Namespace, SecretName, err)
	}
	// Set the caBundle before the server uses a leaf that needs it. Use the leaf even if the
	// APIService does not exist.
	err = m.announce(ctx, next.caBundle)
	if bytes.Equal(m.announced, next.caBundle) || !m.canWait(next.caBundle) {
		m.use(next)
	}
	if err == nil {
		m.announced = next.caBundle
	}
	return err
}

// canWait reports whether clients with the new caBundle trust the present leaf until the check
// after the next one. kube-apiserver reads a new caBundle some time after a replica has written it,
// so the manager uses the new leaf only from the next check on.
func (m *Manager) canWait(bundle []byte) bool {
	present := m.present()
	present.caBundle = bundle
	_, err := verifyLeaf(present, m.options, m.clock.Now().Add(2*m.periods.check))
	return err == nil
}

// present returns the material in use; it is empty at first.
func (m *Manager) present() material {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.current
}

// Run renews the certificate until the context ends.
func (m *Manager) Run(ctx context.Context, _ int) {
	logger := klog.FromContext(ctx).WithName("servingcert")
	wait.BackoffUntilWithContext(ctx, func(ctx context.Context) {
		if err := m.RunOnce(ctx); err != nil && ctx.Err() == nil {
			logger.Error(err, "Cannot renew the serving certificate, will retry")
		}
	}, wait.NewJitteredBackoffManager(m.periods.check, 0.1, m.clock), true) //nolint:staticcheck // SA1019: nothing else there runs on a clock
}

func (m *Manager) use(next material) {
	m.mu.Lock()
	changed := !bytes.Equal(m.current.cert, next.cert)
	m.current = next
	listeners := slices.Clone(m.listeners)
	m.mu.Unlock()
	if changed {
		for _, l := range listeners {
			l.Enqueue()
		}
	}
}

// ensureSecret returns the content of the Secret, and renews it if it expires soon. If several
// replicas renew it at the same time, all of them use the Secret that was written first.
func (m *Manager) ensureSecret(ctx context.Context) (material, error) {
	secrets := m.secrets.CoreV1().Secrets(m.options.Namespace)
	for {
		secret, err := secrets.Get(ctx, SecretName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return material{}, err
		}
		// Create a deleted Secret again with the material in use: other replicas use the same
		// material, and kube-apiserver trusts it.
		have := m.present()
		if !missing {
			have = materialOf(secret)
		}
		want, changed, err := m.renew(have)
		if err != nil {
			return material{}, err
		}
		if !changed && !missing {
			return have, nil
		}
		if missing {
			secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.options.Namespace, Name: SecretName}, Type: corev1.SecretTypeTLS}
		}
		secret = secret.DeepCopy()
		secret.Data = want.data()
		if missing {
			_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
		} else {
			_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			klog.FromContext(ctx).Info("Serving certificate written", "secret", klog.KObj(secret))
			return want, nil
		case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
			continue
		default:
			return material{}, err
		}
	}
}

// announce sets the CA bundle in the APIService, so that the aggregator trusts the leaf.
func (m *Manager) announce(ctx context.Context, bundle []byte) error {
	apiServices := m.aggregator.ApiregistrationV1().APIServices()
	service, err := apiServices.Get(ctx, m.options.APIService, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("APIService not found; its caBundle will be set when it exists", "apiService", m.options.APIService)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read APIService %s to set its caBundle: %w", m.options.APIService, err)
	}
	if named := service.Spec.Service; named != nil && (named.Namespace != m.options.Namespace || named.Name != m.options.Service) {
		// Another installation owns this bundle: with the bundle of this server, the aggregator
		// would no longer trust that installation.
		klog.FromContext(ctx).Info("APIService refers to another Service, its caBundle is not changed", "apiService", m.options.APIService,
			"service", klog.KRef(named.Namespace, named.Name))
		return nil
	}
	if bytes.Equal(service.Spec.CABundle, bundle) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": service.ResourceVersion},
		"spec":     map[string]any{"caBundle": bundle},
	})
	if err != nil {
		return err
	}
	_, err = apiServices.Patch(ctx, m.options.APIService, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "haulout-apiserver"})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("APIService %s has changed; retrying", m.options.APIService)
	}
	if err != nil {
		return fmt.Errorf("set the caBundle of APIService %s: %w", m.options.APIService, err)
	}
	return nil
}

// material is the content of the Secret, with all parts PEM-encoded.
type material struct {
	caBundle, caKey, cert, key []byte
}

func materialOf(secret *corev1.Secret) material {
	return material{
		caBundle: secret.Data[keyCABundle], caKey: secret.Data[keyCAKey],
		cert: secret.Data[keyCert], key: secret.Data[keyKey],
	}
}

func (m material) data() map[string][]byte {
	return map[string][]byte{keyCABundle: m.caBundle, keyCAKey: m.caKey, keyCert: m.cert, keyKey: m.key}
}

// renew returns material that stays valid for at least a third of its lifetime, and reports whether
// it differs from the old one.
func (m *Manager) renew(have material) (material, bool, error) {
	now, o := m.clock.Now(), m.options
	ca, caErr := loadCA(have, now)
	leafErr := checkLeaf(have, o, now)
	if caErr == nil && leafErr == nil {
		return have, false, nil
	}
	want := have
	if caErr != nil {
		var err error
		if ca, err = newCA(now, m.periods.ca); err != nil {
			return material{}, false, err
		}
		bundle := append([]*x509.Certificate{ca.cert}, unexpired(have.caBundle, now)...)
		if want.caBundle, err = cert.EncodeCertificates(bundle...); err != nil {
			return material{}, false, err
		}
		if want.caKey, err = ca.encodeKey(); err != nil {
			return material{}, false, err
		}
	}
	var err error
	if want.cert, want.key, err = ca.newLeaf(o, now, m.periods.leaf); err != nil {
		return material{}, false, err
	}
	return want, true, nil
}

var errRenew = errors.New("less than a third of the lifetime is left")

func needsRenewal(c *x509.Certificate, now time.Time) bool {
	life := c.NotAfter.Sub(c.NotBefore) - clockSkew
	return now.Add(life / 3).After(c.NotAfter)
}
