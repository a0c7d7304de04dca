"""The real layer's settings: a quiet socket must outlive the layer's own waits."""

from channels_redis.core import RedisChannelLayer
from redis.asyncio.connection import ConnectionPool

from controlplane import settings


def test_reading_may_take_longer_than_the_layer_waits() -> None:
    (host,) = settings.CHANNEL_LAYERS["default"]["CONFIG"]["hosts"]
    layer = RedisChannelLayer(hosts=[host])
    pool = layer.create_pool(0)
    assert isinstance(pool, ConnectionPool)
    assert pool.connection_kwargs["socket_timeout"] > 2 * layer.brpop_timeout
