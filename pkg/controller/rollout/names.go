// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// unitDigits is the number of hexadecimal digits of the hash in the name of a unit that is not
// usable as it is.
const unitDigits = 10

// maintenanceName returns the name of the maintenance of an attempt for a unit. It is the same each
// time, so that a server that creates it again finds the existing one. It ends with the number of
// the attempt, which begins with 1.
func maintenanceName(rollout, unit string, attempt int) string {
	name := fmt.Sprintf("%s-%s-%d", rollout, unit, attempt)
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	// The value of a label may have characters that a name must not have, and the name of a node
	// may be too long.
	sum := sha256.Sum256([]byte(unit))
	hash := hex.EncodeToString(sum[:])[:unitDigits]
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(unit))
	room := validation.DNS1123SubdomainMaxLength - len(rollout) - len(hash) - len("---") - len(fmt.Sprint(attempt))
	readable = strings.Trim(readable[:min(len(readable), room)], "-")
	return fmt.Sprintf("%s-%s-%s-%d", rollout, readable, hash, attempt)
}
