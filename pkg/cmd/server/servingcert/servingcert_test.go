// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorfake "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var options = Options{
	Namespace: "haulout-system", Service: "haulout-apiserver", APIService: "v1alpha1.maintenance.haulout.dev",
}

type fixture struct {
	*testing.T
	host  *fake.Clientset
	agg   *aggregatorfake.Clientset
	clock *clocktesting.FakeClock
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	return fixture{
		T: t, host: fake.NewClientset(), clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		agg: aggregatorfake.NewClientset(&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: options.APIService},
		}),
	}
}

func (f fixture) replica() *Manager {
	return New(options, f.host, f.agg, f.clock)
}

func (f fixture) runOnce(m *Manager) (leaf []byte) {
	f.Helper()
	must.Do(f, m.RunOnce(f.Context()))
	leaf, _ = m.CurrentCertKeyContent()
	return leaf
}

// trusted reports whether a client that trusts the announced CA trusts the server at the current
// time.
func (f fixture) trusted(m *Manager) bool {
	f.Helper()
	return f.trustedAt(m, f.clock.Now())
}

// trustedAt does the same as trusted for a client whose clock shows the given time.
func (f fixture) trustedAt(m *Manager, now time.Time) bool {
	f.Helper()
	service, err := f.agg.ApiregistrationV1().APIServices().Get(f.Context(), options.APIService, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	pair := must.Get(tls.X509KeyPair(m.CurrentCertKeyContent()))(f)
	leaf := must.Get(x509.ParseCertificate(pair.Certificate[0]))(f)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(service.Spec.CABundle)
	_, err = leaf.Verify(x509.VerifyOptions{
		DNSName: "haulout-apiserver.haulout-system.svc", Roots: roots, CurrentTime: now,
	})
	return err == nil
}

func TestCertificateIsMadeOnceAndSharedByReplicas(t *testing.T) {
	f := newFixture(t)
	a, b := f.replica(), f.replica()
	is.True(t, bytes.Equal(f.runOnce(a), f.runOnce(b)), "the second replica serves another certificate")
	is.True(t, f.trusted(a) && f.trusted(b), "the announced CA does not vouch for the certificate")
}

func TestReplicasThatStartTogetherAgree(t *testing.T) {
	f := newFixture(t)
	replicas := []*Manager{f.replica(), f.replica(), f.replica(), f.replica()}
	var wg sync.WaitGroup
	for _, m := range replicas {
		wg.Go(func() { f.runOnce(m) })
	}
	wg.Wait()
	for _, m := range replicas {
		is.True(t, f.trusted(m), "a replica serves a certificate that the announced CA does not vouch for")
	}
}

func TestRenewalOverYearsIsNeverUntrusted(t *testing.T) {
	f := newFixture(t)
	a, b := f.replica(), f.replica()
	first := f.runOnce(a)
	f.runOnce(b)
	seen := map[string]bool{string(first): true}
	for range 12 * 12 { // a dozen years, in steps shorter than the remaining time of a leaf at its renewal
		f.clock.Step(25 * 24 * time.Hour)
		seen[string(f.runOnce(a))] = true
		if !f.trusted(b) {
			t.Fatalf("%v: the replica that has not looked yet is no longer trusted", f.clock.Now())
		}
		f.runOnce(b)
		if !f.trusted(a) || !f.trusted(b) {
			t.Fatalf("%v: not trusted", f.clock.Now())
		}
	}
	is.True(t, len(seen) >= 40, "%d certificates in ten years, want a new one every 60 days or so", len(seen))
}

// TestClocksFiveMinutesApartDoNoHarm has replicas and kube-apiservers whose clocks differ by five
// minutes. Whichever replica renews, all replicas serve a certificate that each kube-apiserver
// trusts, and no replica reverts the write of another.
func TestClocksFiveMinutesApartDoNoHarm(t *testing.T) {
	f := newFixture(t)
	ahead := clocktesting.NewFakeClock(f.clock.Now().Add(5 * time.Minute))
	onTime, early := f.replica(), New(options, f.host, f.agg, ahead)
	renewedBy := map[*Manager]int{}
	var last []byte
	for i := range 12 * 12 {
		order := []*Manager{onTime, early}
		if i%2 == 1 {
			order = []*Manager{early, onTime}
		}
		for _, m := range order {
			if leaf := f.runOnce(m); !bytes.Equal(leaf, last) {
				renewedBy[m]++
				last = leaf
			}
			for _, now := range []time.Time{f.clock.Now(), ahead.Now()} {
				must.True(t, f.trustedAt(m, now), "round %d: a kube-apiserver whose clock shows %v does not trust the replica", i, now)
			}
		}
		must.True(t, bytes.Equal(f.runOnce(onTime), f.runOnce(early)), "round %d: the replicas serve different certificates", i)
		f.clock.Step(25 * 24 * time.Hour)
		ahead.Step(25 * 24 * time.Hour)
	}
	if renewedBy[onTime] < 10 || renewedBy[early] < 10 {
		t.Errorf("the replicas renewed %d and %d times, want each at least 10 times", renewedBy[onTime], renewedBy[early])
	}
}

func TestChangesFromOutsideAreHealed(t *testing.T) {
	f := newFixture(t)
	m := f.replica()
	f.runOnce(m)
	service := must.Get(f.agg.ApiregistrationV1().APIServices().Get(t.Context(), options.APIService, metav1.GetOptions{}))(t)
	service.Spec.CABundle = nil
	must.Get(f.agg.ApiregistrationV1().APIServices().Update(t.Context(), service, metav1.UpdateOptions{}))(t)
	secret := must.Get(f.host.CoreV1().Secrets(options.Namespace).Get(t.Context(), SecretName, metav1.GetOptions{}))(t)
	secret.Data[keyCert] = []byte("nonsense")
	must.Get(f.host.CoreV1().Secrets(options.Namespace).Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
	f.runOnce(m)
	is.True(t, f.trusted(m), "not trusted after the Secret and the caBundle were spoiled")
}

// TestCABundleOfAnotherInstallationIsLeftAlone has an APIService of another installation. If the
// manager changed its caBundle, the aggregator would no longer trust that installation.
func TestCABundleOfAnotherInstallationIsLeftAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		namespace string
		want      bool
	}{
		"the caBundle is written for the own Service":                    {namespace: options.Namespace, want: true},
		"the caBundle is not written for a Service in another namespace": {namespace: "blue"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			services := f.agg.ApiregistrationV1().APIServices()
			must.Get(services.Update(t.Context(), &apiregistrationv1.APIService{
				ObjectMeta: metav1.ObjectMeta{Name: options.APIService},
				Spec: apiregistrationv1.APIServiceSpec{
					Service: &apiregistrationv1.ServiceReference{Namespace: tc.namespace, Name: options.Service},
				},
			}, metav1.UpdateOptions{}))(t)
			f.runOnce(f.replica())
			service, err := services.Get(t.Context(), options.APIService, metav1.GetOptions{})
			if err != nil || (len(service.Spec.CABundle) > 0) != tc.want {
				t.Errorf("the caBundle has %d bytes (%v), want it written: %v",
					len(service.Spec.CABundle), err, tc.want)
			}
		})
	}
}

func TestMissingAPIServiceIsNoError(t *testing.T) {
	f := newFixture(t)
	f.agg = aggregatorfake.NewClientset()
	if leaf := f.runOnce(f.replica()); len(leaf) == 0 {
		t.Error("no certificate")
	}
}
