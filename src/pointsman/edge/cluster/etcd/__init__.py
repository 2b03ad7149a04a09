"""etcd: a small client, over the JSON gateway that every etcd has."""
